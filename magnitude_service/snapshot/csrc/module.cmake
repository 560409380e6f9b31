# magnitude_service.snapshot._snapshot: checksums, and segments in bytes. One translation unit per instruction set, each with its own flags; nothing
# shipped is built with -march=native.
set(SNAPSHOT_DIR ${CMAKE_CURRENT_LIST_DIR})
nanobind_add_module(_snapshot NB_STATIC
  ${SNAPSHOT_DIR}/bindings.cpp
  ${SNAPSHOT_DIR}/crc32c.cpp
  ${SNAPSHOT_DIR}/segment.cpp)
target_compile_options(_snapshot PRIVATE -O3 -Wall -Wextra)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(_snapshot PRIVATE ${SNAPSHOT_DIR}/crc32c_avx512.cpp ${SNAPSHOT_DIR}/crc32c_sse42.cpp)
  set_source_files_properties(${SNAPSHOT_DIR}/crc32c_sse42.cpp PROPERTIES COMPILE_OPTIONS "-msse4.2;-mpclmul")
  # gcc 12 warns inside its own intrinsics (PR 105593).
  set_source_files_properties(${SNAPSHOT_DIR}/crc32c_avx512.cpp PROPERTIES COMPILE_OPTIONS
    "-mavx512f;-mavx512vl;-mvpclmulqdq;-mpclmul;-Wno-uninitialized;-Wno-maybe-uninitialized")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  target_sources(_snapshot PRIVATE ${SNAPSHOT_DIR}/crc32c_arm.cpp)
  set_source_files_properties(${SNAPSHOT_DIR}/crc32c_arm.cpp PROPERTIES COMPILE_OPTIONS "-march=armv8-a+crc")
endif()
install(TARGETS _snapshot LIBRARY DESTINATION magnitude_service/snapshot)
