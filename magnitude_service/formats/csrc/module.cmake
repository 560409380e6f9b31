# magnitude_service.formats._formats: the GGUF header scan, and guarded mappings of files.
nanobind_add_module(_formats NB_STATIC
  formats/csrc/bindings.cpp
  formats/csrc/gguf_scan.cpp
  formats/csrc/guard.cpp
  formats/csrc/mapping.cpp
  formats/csrc/names.cpp)
target_compile_options(_formats PRIVATE -Wall -Wextra)
install(TARGETS _formats LIBRARY DESTINATION magnitude_service/formats)
