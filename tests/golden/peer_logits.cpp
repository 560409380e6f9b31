// Logits of every position of a prompt by llama.cpp's C API, with a float32 key/value cache and no flash attention.
// Usage: peer_logits MODEL.gguf TOKEN… > float32 [tokens, vocabulary]; built and run by make_tiny_vectors.py.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static void quiet(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char** argv) {
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  std::vector<llama_token> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(atoi(argv[i]));
  const int count = static_cast<int>(tokens.size());

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = 2;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;

  llama_batch batch = llama_batch_init(count, 0, 1);
  for (int i = 0; i < count; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = count;
  if (llama_decode(context, batch) != 0) return 1;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 0; i < count; ++i) fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, stdout);
  return 0;
}
