// Streams an answer: stream [ADDRESS] [PROMPT]
#include <algorithm>
#include <cstdio>

#include "magnitude/client.h"

int main(int count, char** arguments) {
  magnitude::Client client(count > 1 ? arguments[1] : "127.0.0.1:50051");
  auto request = magnitude::chat({magnitude::user(count > 2 ? arguments[2] : "Write a haiku about rain.")});
  request.mutable_stopping()->set_max_tokens(64);
  try {
    const auto stream = client.stream(request);
    for (const auto& text : stream->texts()) std::printf("%s", text.c_str()), std::fflush(stdout);
    const auto& usage = stream->finished->usage();
    const double seconds = std::max(stream->finished->timings().decode_ms(), 1e-3) / 1e3;
    std::printf("\n%u + %u tokens, %.1f tokens/s\n", usage.prompt_tokens(), usage.completion_tokens(),
                usage.completion_tokens() / seconds);
  } catch (const magnitude::CallError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
