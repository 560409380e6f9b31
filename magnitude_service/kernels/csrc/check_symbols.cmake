# Fails when an object of an instruction set defines a weak symbol: an inline function of a standard header, compiled
# there for AVX, could replace everybody's copy at link time and kill the process on a machine without AVX.
foreach(object IN LISTS OBJECTS)
  if(object MATCHES "((avx|neon)[0-9_a-z]*)\\.cpp")
    execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
    list(FILTER weak EXCLUDE REGEX "DW\\.ref\\.")   # data of exception handling, which sanitizers bring
    if(weak)
      message(FATAL_ERROR "${object} defines weak symbols: ${weak}")
    endif()
  endif()
endforeach()
