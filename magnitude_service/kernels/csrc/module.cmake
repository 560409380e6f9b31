# _kernels: the arithmetic, its thread pool and the native executor.
include(${CMAKE_CURRENT_LIST_DIR}/tables.cmake)

file(GLOB KERNELS_SOURCES CONFIGURE_DEPENDS ${KERNELS_DIR}/*.cpp)
list(REMOVE_ITEM KERNELS_SOURCES ${KERNELS_FOREIGN_SOURCES})

find_package(Threads REQUIRED)
nanobind_add_module(_kernels NB_STATIC NOMINSIZE ${KERNELS_SOURCES})
target_compile_options(_kernels PRIVATE ${KERNELS_FLAGS})
target_link_libraries(_kernels PRIVATE Threads::Threads)
check_symbols(_kernels)
install(TARGETS _kernels LIBRARY DESTINATION magnitude_service/kernels)
