#include "retry.h"

#include <thread>

namespace magnitude {

std::unique_ptr<grpc::ClientContext> bounded(const Bound& bound) {
  auto made = std::make_unique<grpc::ClientContext>();
  if (bound) made->set_deadline(*bound);
  return made;
}

std::optional<std::chrono::milliseconds> delay(const CallError& error, int attempts, const Bound& bound) {
  if (attempts <= 1 || !error.retry_after) return std::nullopt;
  if (bound && std::chrono::system_clock::now() + *error.retry_after >= *bound) return std::nullopt;
  return error.retry_after;
}

void change(int attempts, const Bound& bound, const std::function<grpc::Status(grpc::ClientContext&)>& call) {
  for (;; --attempts) {
    const auto status = call(*bounded(bound));
    if (status.ok()) return;
    const CallError error(status);
    const auto wait = delay(error, attempts, bound);
    if (!wait) throw error;
    std::this_thread::sleep_for(*wait);
  }
}

}  // namespace magnitude
