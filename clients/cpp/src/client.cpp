#include "magnitude/client.h"

#include "retry.h"
#include "service_config.h"

namespace magnitude {

namespace {

std::shared_ptr<grpc::ChannelCredentials> credentials(const Options& options) {
  if (!options.tls) {
    if (!options.token.empty()) throw std::invalid_argument("A token needs TLS: it would be sent in the clear.");
    return grpc::InsecureChannelCredentials();
  }
  auto encrypted = grpc::SslCredentials(*options.tls);
  if (options.token.empty()) return encrypted;
  return grpc::CompositeChannelCredentials(encrypted, grpc::AccessTokenCredentials(options.token));
}

std::shared_ptr<grpc::Channel> channel(const std::string& address, const Options& options, bool retries) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(SERVICE_CONFIG);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, retries);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, credentials(options), arguments);
}

v1::ChatMessage message(v1::Role role, const std::string& text) {
  v1::ChatMessage made;
  made.set_role(role);
  made.add_content()->set_text(text);
  return made;
}

}  // namespace

Client::Client(const std::string& address, Options options)
    : inference_once_(v1::InferenceService::NewStub(channel(address, options, false))),
      timeout_(options.timeout),
      attempts_(options.retries ? ATTEMPTS_MAX : 1) {
  auto shared = channel(address, options, options.retries);
  inference = v1::InferenceService::NewStub(shared);
  models = v1::ModelService::NewStub(shared);
  health = v1::HealthService::NewStub(shared);
  snapshots = v1::SnapshotService::NewStub(shared);
}

Bound Client::bound() const {
  if (!timeout_) return std::nullopt;
  return std::chrono::system_clock::now() + *timeout_;
}

std::unique_ptr<grpc::ClientContext> Client::context() const { return bounded(bound()); }

void Client::change(const std::function<grpc::Status(grpc::ClientContext&)>& call) const {
  magnitude::change(attempts_, bound(), call);
}

v1::InferResponse Client::infer(const v1::InferRequest& request) {
  v1::InferResponse answer;
  if (request.session_id().empty()) {
    check(inference->Infer(context().get(), request, &answer));
  } else {
    magnitude::change(attempts_of(request, attempts_), bound(),
                      [&](auto& context) { return inference_once_->Infer(&context, request, &answer); });
  }
  return answer;
}

std::unique_ptr<Stream> Client::stream(const v1::InferRequest& request) {
  v1::StreamInferRequest streamed;
  *streamed.mutable_request() = request;
  const bool in_session = !request.session_id().empty();
  auto& stub = in_session ? *inference_once_ : *inference;
  const int attempts = in_session ? attempts_of(request, attempts_) : 1;
  return std::unique_ptr<Stream>(new Stream(stub, bound(), attempts, std::move(streamed)));
}

Conversation Client::conversation(std::vector<v1::ChatMessage> messages, v1::InferRequest options) {
  return Conversation(*this, std::move(messages), std::move(options));
}

Session Client::session(const std::string& id) { return Session(*this, id); }

Stream::Stream(v1::InferenceService::Stub& stub, Bound bound, int attempts, v1::StreamInferRequest request)
    : stub_(stub), bound_(bound), attempts_(attempts), request_(std::move(request)) {
  begin();
}

void Stream::begin() {
  reader_.reset();  // before the context that it reads by
  context_ = bounded(bound_);
  reader_ = stub_.StreamInfer(context_.get(), request_);
}

Stream::~Stream() {
  if (ended_) return;
  cancel();
  for (v1::StreamInferResponse rest; reader_->Read(&rest);) continue;  // Finish may be called only then
  reader_->Finish();
}

bool Stream::next(v1::StreamInferResponse& event) {
  if (ended_) return false;
  while (!reader_->Read(&event)) {
    const auto status = reader_->Finish();
    ended_ = true;
    if (status.ok()) return false;
    const CallError error(status);
    const auto wait = delay(error, attempts_--, bound_);
    std::unique_lock lock(guard_);
    if (!wait || cancellation_.wait_for(lock, *wait, [this] { return cancelled_; })) throw error;
    begin();
    ended_ = false;
  }
  attempts_ = 1;
  if (event.has_started()) started = event.started();
  if (event.has_finished()) finished = event.finished();
  return true;
}

Range<v1::StreamInferResponse> Stream::events() {
  return Range<v1::StreamInferResponse>([this](auto& event) { return next(event); });
}

Range<std::string> Stream::texts() {
  return Range<std::string>([this](std::string& text) {
    for (v1::StreamInferResponse event; next(event);) {
      if (event.delta().index() == 0 && !event.delta().text().empty()) {
        text = std::move(*event.mutable_delta()->mutable_text());
        return true;
      }
    }
    return false;
  });
}

void Stream::cancel() {
  const std::lock_guard lock(guard_);
  cancelled_ = true;
  context_->TryCancel();
  cancellation_.notify_all();
}

Conversation::Conversation(Client& client, std::vector<v1::ChatMessage> messages, v1::InferRequest options)
    : messages(std::move(messages)), client_(client), options_(std::move(options)) {}

std::string Conversation::say(const std::string& text, const std::function<void(const std::string&)>& each) {
  auto asked = messages;
  asked.push_back(user(text));
  auto request = options_;
  request.mutable_chat()->MergeFrom(chat(asked).chat());
  std::string answer;
  const auto stream = client_.stream(request);
  for (const auto& part : stream->texts()) {
    if (each) each(part);
    answer += part;
  }
  asked.push_back(assistant(answer));
  messages = std::move(asked);
  return answer;
}

v1::InferRequest text(const std::string& text) {
  v1::InferRequest request;
  request.set_text(text);
  return request;
}

v1::InferRequest chat(const std::vector<v1::ChatMessage>& messages) {
  v1::InferRequest request;
  *request.mutable_chat()->mutable_messages() = {messages.begin(), messages.end()};
  return request;
}

v1::ChatMessage system(const std::string& text) { return message(v1::ROLE_SYSTEM, text); }

v1::ChatMessage user(const std::string& text) { return message(v1::ROLE_USER, text); }

v1::ChatMessage assistant(const std::string& text) { return message(v1::ROLE_ASSISTANT, text); }

}  // namespace magnitude
