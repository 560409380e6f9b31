#pragma once

#include <functional>
#include <optional>

#include "magnitude/client.h"

namespace magnitude {

// How often a call is tried, as in the service config.
inline constexpr int ATTEMPTS_MAX = 4;

// How often a request of a session is tried. What fails in saving it afterwards fails when the session has the answer
// already: whether there was one cannot be told, so that such a request is never made again.
inline int attempts_of(const v1::InferRequest& request, int attempts) {
  return request.has_snapshot_afterwards() ? 1 : attempts;
}

std::unique_ptr<grpc::ClientContext> bounded(const Bound& bound);

// How long to wait before a call that changes something is made again; absent: it is not. An error with a delay says
// that the server refused it for now, and that nothing was done. A wait that would not end before the deadline is none:
// the refusal says more than that the time is over.
std::optional<std::chrono::milliseconds> delay(const CallError& error, int attempts, const Bound& bound);

// Makes such a call until it is taken. Throws CallError.
void change(int attempts, const Bound& bound, const std::function<grpc::Status(grpc::ClientContext&)>& call);

}  // namespace magnitude
