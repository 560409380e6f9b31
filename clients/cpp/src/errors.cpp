#include "magnitude/errors.h"

#include "details.pb.h"

namespace magnitude {

namespace {

// Reads a detail if it is the named message of google.rpc.
template <typename Message>
bool unpack(const google::protobuf::Any& detail, const char* name, Message& message) {
  return detail.type_url() == std::string("type.googleapis.com/google.rpc.") + name &&
         message.ParseFromString(detail.value());
}

}  // namespace

CallError::CallError(const grpc::Status& status)
    : std::runtime_error(status.error_message()), code(status.error_code()) {
  details::Status sent;
  if (!sent.ParseFromString(status.error_details())) return;
  for (const auto& detail : sent.details()) {
    details::ErrorInfo info;
    details::RetryInfo retry;
    details::BadRequest bad;
    if (unpack(detail, "ErrorInfo", info)) {
      reason = info.reason();
      details.insert(info.metadata().begin(), info.metadata().end());
    } else if (unpack(detail, "RetryInfo", retry)) {
      const auto& delay = retry.retry_delay();
      retry_after = std::chrono::milliseconds(delay.seconds() * 1000 + delay.nanos() / 1000000);
    } else if (unpack(detail, "BadRequest", bad)) {
      for (const auto& violation : bad.field_violations()) {
        field_violations[violation.field()] = violation.description();
      }
    }
  }
}

void check(const grpc::Status& status) {
  if (!status.ok()) throw CallError(status);
}

}  // namespace magnitude
