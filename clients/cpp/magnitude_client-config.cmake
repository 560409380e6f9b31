# What find_package(magnitude_client) reads: magnitude::client, and what it needs.
include(CMakeFindDependencyMacro)
find_dependency(Protobuf)
find_dependency(gRPC CONFIG)
find_dependency(OpenSSL)
include("${CMAKE_CURRENT_LIST_DIR}/magnitude_client-targets.cmake")
