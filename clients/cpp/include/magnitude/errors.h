#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

namespace magnitude {

// What a call failed with: a gRPC status, and the google.rpc details that the server sends with it.
struct CallError : std::runtime_error {
  explicit CallError(const grpc::Status& status);

  // The gRPC status.
  grpc::StatusCode code;
  // The server's word for it ("CONTEXT_LENGTH_EXCEEDED"); empty if it did not come from the server.
  std::string reason;
  // The parts of the message by name.
  std::map<std::string, std::string> details;
  // The paths of fields at fault, with what is wrong.
  std::map<std::string, std::string> field_violations;
  // How long to wait, where waiting helps.
  std::optional<std::chrono::milliseconds> retry_after;
};

// Throws a CallError unless the status is OK: for calls of the generated stubs.
void check(const grpc::Status& status);

}  // namespace magnitude
