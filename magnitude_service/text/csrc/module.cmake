# magnitude_service.text._text: tokenizers.
nanobind_add_module(_text NB_STATIC
  text/csrc/bindings.cpp
  text/csrc/byte_level.cpp
  text/csrc/byte_pair_tokenizer.cpp
  text/csrc/merges.cpp
  text/csrc/piece_merger.cpp
  text/csrc/pre_tokenizers.cpp
  text/csrc/special_tokens.cpp
  text/csrc/unicode_classes.cpp
  text/csrc/vocabulary.cpp)
target_compile_options(_text PRIVATE -Wall -Wextra)
install(TARGETS _text LIBRARY DESTINATION magnitude_service/text)
