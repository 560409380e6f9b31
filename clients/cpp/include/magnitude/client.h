// Magnitude for C++: `Client` talks to a server, `magnitude::v1` is its contract.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "magnitude/errors.h"
#include "magnitude/range.h"
#include "magnitude/session.h"
#include "magnitude/v1/health.grpc.pb.h"
#include "magnitude/v1/inference.grpc.pb.h"
#include "magnitude/v1/model.grpc.pb.h"
#include "magnitude/v1/snapshot.grpc.pb.h"

namespace magnitude {

// How to connect.
struct Options {
  // Encrypts; default-constructed ones trust the system's authorities.
  std::optional<grpc::SslCredentialsOptions> tls = std::nullopt;
  // Sent as a bearer token with every call. It needs TLS.
  std::string token = {};
  // Bounds each call. Absent: no bound.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // Without them a refusal that would pass is thrown at once, with how long to wait.
  bool retries = true;
};

// When a call must be over; absent: no bound.
using Bound = std::optional<std::chrono::system_clock::time_point>;

// A streamed answer: ranges of its events, or of its text. Its end, early or not, ends the request at the server.
class Stream {
 public:
  ~Stream();

  // More of the answer; false when it is complete. Throws CallError.
  bool next(v1::StreamInferResponse& event);
  Range<v1::StreamInferResponse> events();
  // The text of the first choice, as it comes.
  Range<std::string> texts();
  // Ends the request at the server; the next read fails as CANCELLED. Any thread may call it.
  void cancel();

  // Set as these events pass.
  std::optional<v1::StreamStarted> started;
  std::optional<v1::StreamFinished> finished;

 private:
  friend class Client;
  // `attempts` of a request that changes something: until its first event it may be refused for now.
  Stream(v1::InferenceService::Stub& stub, Bound bound, int attempts, v1::StreamInferRequest request);
  void begin();

  v1::InferenceService::Stub& stub_;
  Bound bound_;
  int attempts_;
  v1::StreamInferRequest request_;
  std::mutex guard_;  // over the context, which another attempt replaces, and `cancelled_`
  std::condition_variable cancellation_;
  bool cancelled_ = false;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::StreamInferResponse>> reader_;
  bool ended_ = false;
};

class Conversation;

// A connection to one server, or to all that a name stands for. Threads may share it. What fails throws CallError.
class Client {
 public:
  // `address` is "host:port", "ipv4:10.0.0.1:50051,10.0.0.2:50051", "dns:///name:port", or any other name that gRPC
  // resolves.
  explicit Client(const std::string& address = "127.0.0.1:50051", Options options = {});

  // The whole answer.
  v1::InferResponse infer(const v1::InferRequest& request);
  // The answer as it comes.
  std::unique_ptr<Stream> stream(const v1::InferRequest& request);
  // A chat that begins with some messages, often one of the system's. What `options` ask for, a request without a
  // prompt, holds for every answer.
  Conversation conversation(std::vector<v1::ChatMessage> messages = {}, v1::InferRequest options = {});

  // A session by its name. The first request begins it; what was saved of it comes back by itself.
  Session session(const std::string& id);

  // What a call of the stubs wants: the timeout, where there is one.
  std::unique_ptr<grpc::ClientContext> context() const;
  // Makes a call that changes something, of any stub: again only where the server refused it for now.
  void change(const std::function<grpc::Status(grpc::ClientContext&)>& call) const;

  // The generated stubs: every rpc is within reach.
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::ModelService::Stub> models;
  std::unique_ptr<v1::HealthService::Stub> health;
  std::unique_ptr<v1::SnapshotService::Stub> snapshots;

 private:
  Bound bound() const;

  std::unique_ptr<v1::InferenceService::Stub> inference_once_;
  std::optional<std::chrono::milliseconds> timeout_;
  int attempts_;
};

// A chat whose messages are kept here and sent with each question; what the server has computed of them already it does
// not compute again.
class Conversation {
 public:
  // Asks something; the answer comes in parts, to `each`, and is returned as a whole. Question and answer become
  // messages when it is complete: one that fails was not said.
  std::string say(const std::string& text, const std::function<void(const std::string&)>& each = nullptr);

  // What was said so far.
  std::vector<v1::ChatMessage> messages;

 private:
  friend class Client;
  Conversation(Client& client, std::vector<v1::ChatMessage> messages, v1::InferRequest options);

  Client& client_;
  v1::InferRequest options_;
};

// Requests; further options are the message's fields. What is absent takes the server's default.
v1::InferRequest text(const std::string& text);
v1::InferRequest chat(const std::vector<v1::ChatMessage>& messages);

// Messages of a chat.
v1::ChatMessage system(const std::string& text);
v1::ChatMessage user(const std::string& text);
v1::ChatMessage assistant(const std::string& text);

}  // namespace magnitude
