# _kernels: the arithmetic, its thread pool and the native executor.
#
# One translation unit per instruction set, each with its own flags; nothing shipped is built with -march=native. The
# arithmetic is canonical (ops.h), so no compiler may contract a multiplication and an addition on its own.
set(KERNELS_DIR ${CMAKE_CURRENT_LIST_DIR})
set(KERNELS_FLAGS -O3 -ffp-contract=off -fno-math-errno -Wall -Wextra)
# Vectors are written by hand there: gcc 12's own vectoriser forms fmaddsub in spite of -ffp-contract=off,
# and it warns inside its own intrinsics (PR 105593).
set(KERNELS_VECTOR_FLAGS -fno-tree-vectorize -fno-tree-slp-vectorize -Wno-uninitialized -Wno-maybe-uninitialized)
set(KERNELS_AVX2_FLAGS -mavx2 -mfma -mf16c -mbmi2 ${KERNELS_VECTOR_FLAGS})
set(KERNELS_AVX512_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c -mbmi2
    ${KERNELS_VECTOR_FLAGS})

file(GLOB KERNELS_SOURCES CONFIGURE_DEPENDS ${KERNELS_DIR}/*.cpp)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(REMOVE_ITEM KERNELS_SOURCES ${KERNELS_DIR}/avx2.cpp ${KERNELS_DIR}/avx512.cpp)
endif()

find_package(Threads REQUIRED)
nanobind_add_module(_kernels NB_STATIC NOMINSIZE ${KERNELS_SOURCES})
target_compile_options(_kernels PRIVATE ${KERNELS_FLAGS})
target_link_libraries(_kernels PRIVATE Threads::Threads)
set_source_files_properties(${KERNELS_DIR}/avx2.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX2_FLAGS}")
set_source_files_properties(${KERNELS_DIR}/avx512.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX512_FLAGS}")
install(TARGETS _kernels LIBRARY DESTINATION magnitude_service/kernels)
if(CMAKE_NM)
  add_custom_command(TARGET _kernels POST_BUILD VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:_kernels>"
                             -P ${KERNELS_DIR}/check_symbols.cmake)
endif()
