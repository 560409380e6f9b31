# The tables of kernels, their choice and their comparison: what the extension module and the native test program
# (tests/native) both build, with the same flags.
#
# One translation unit per instruction set, each with its own flags; nothing shipped is built with -march=native. The
# arithmetic is canonical (ops.h), so no compiler may contract a multiplication and an addition on its own.
set(KERNELS_DIR ${CMAKE_CURRENT_LIST_DIR})
set(KERNELS_OPTIMIZATION -O3 CACHE STRING "Of the kernels; sanitizers take minutes to compile with more than -O1")
set(KERNELS_FLAGS ${KERNELS_OPTIMIZATION} -ffp-contract=off -fno-math-errno -Wall -Wextra)
# Vectors are written by hand there: gcc 12's own vectoriser forms fmaddsub in spite of -ffp-contract=off,
# and it warns inside its own intrinsics (PR 105593).
set(KERNELS_VECTOR_FLAGS -fno-tree-vectorize -fno-tree-slp-vectorize -Wno-uninitialized -Wno-maybe-uninitialized)
set(KERNELS_AVX2_FLAGS -mavx2 -mfma -mf16c -mbmi2 ${KERNELS_VECTOR_FLAGS})
set(KERNELS_AVX_VNNI_FLAGS -mavxvnni ${KERNELS_AVX2_FLAGS})
set(KERNELS_AVX512_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mamx-tile -mamx-int8 -mfma -mf16c
    -mbmi2 ${KERNELS_VECTOR_FLAGS})   # no compiler uses tiles on its own
set(KERNELS_NEON_FLAGS -march=armv8.2-a+dotprod ${KERNELS_VECTOR_FLAGS})
set(KERNELS_NEON_I8MM_FLAGS -march=armv8.2-a+dotprod+i8mm ${KERNELS_VECTOR_FLAGS})

set(KERNELS_X86_SOURCES ${KERNELS_DIR}/avx2.cpp ${KERNELS_DIR}/avx_vnni.cpp ${KERNELS_DIR}/avx512.cpp)
set(KERNELS_ARM_SOURCES ${KERNELS_DIR}/neon.cpp ${KERNELS_DIR}/neon_i8mm.cpp)
set_source_files_properties(${KERNELS_DIR}/avx2.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX2_FLAGS}")
set_source_files_properties(${KERNELS_DIR}/avx_vnni.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX_VNNI_FLAGS}")
set_source_files_properties(${KERNELS_DIR}/avx512.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX512_FLAGS}")
set_source_files_properties(${KERNELS_DIR}/neon.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_NEON_FLAGS}")
set_source_files_properties(${KERNELS_DIR}/neon_i8mm.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_NEON_I8MM_FLAGS}")

set(KERNELS_TABLE_SOURCES ${KERNELS_DIR}/scalar.cpp ${KERNELS_DIR}/dispatch.cpp ${KERNELS_DIR}/selection.cpp
    ${KERNELS_DIR}/self_test.cpp ${KERNELS_DIR}/table_comparison.cpp)
set(KERNELS_FOREIGN_SOURCES ${KERNELS_X86_SOURCES} ${KERNELS_ARM_SOURCES})   # less those of this processor
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND KERNELS_TABLE_SOURCES ${KERNELS_X86_SOURCES})
  list(REMOVE_ITEM KERNELS_FOREIGN_SOURCES ${KERNELS_X86_SOURCES})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  list(APPEND KERNELS_TABLE_SOURCES ${KERNELS_ARM_SOURCES})
  list(REMOVE_ITEM KERNELS_FOREIGN_SOURCES ${KERNELS_ARM_SOURCES})
endif()

function(check_symbols target)
  if(CMAKE_NM)
    add_custom_command(TARGET ${target} POST_BUILD VERBATIM
                       COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:${target}>"
                               -P ${KERNELS_DIR}/check_symbols.cmake)
  endif()
endfunction()
