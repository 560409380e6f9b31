// Runs the scenarios of tests/conformance:
// conformance [--ca FILE] [--certificate FILE --key FILE] [--token TOKEN] ADDRESS SCENARIOS
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <set>
#include <thread>

#include "magnitude/client.h"

using namespace std::chrono_literals;
using magnitude::CallError;
using magnitude::Client;
using Clock = std::chrono::steady_clock;
using Json = google::protobuf::Value;
using Streams = std::vector<std::unique_ptr<magnitude::Stream>>;
namespace v1 = magnitude::v1;

namespace {

// Fails the scenario.
void ensure(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// A member of an object; null where it is absent.
const Json& at(const Json& object, const std::string& name) {
  static const Json null;
  const auto& fields = object.struct_value().fields();
  const auto found = fields.find(name);
  return found == fields.end() ? null : found->second;
}

int number(const Json& object, const std::string& name) { return static_cast<int>(at(object, name).number_value()); }

std::string text(const Json& object, const std::string& name) { return at(object, name).string_value(); }

bool has(const Json& object, const std::string& name) { return object.struct_value().fields().count(name) != 0; }

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ensure(file.good(), path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

v1::InferRequest request(const Json& s, const std::string& name = "request") {
  std::string json;
  v1::InferRequest made;
  ensure(google::protobuf::util::MessageToJsonString(at(s, name), &json).ok() &&
             google::protobuf::util::JsonStringToMessage(json, &made).ok(),
         name + " is no InferRequest");
  return made;
}

void check_answer(const Json& expect, const std::string& answer, const v1::ChoiceEnd& end, const v1::Usage& usage) {
  ensure(!has(expect, "text") || answer == text(expect, "text"), "the text is " + answer);
  ensure(v1::FinishReason_Name(end.finish_reason()) == text(expect, "finishReason"), end.ShortDebugString());
  ensure(static_cast<int>(usage.completion_tokens()) == number(expect, "completionTokens"), usage.ShortDebugString());
}

const char* const CODES[] = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
                             "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
                             "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE"};

template <typename Call>
CallError fails(const Json& expect, Call call, const std::string& prefix = "") {
  try {
    call();
  } catch (const CallError& error) {
    ensure(error.code < std::size(CODES) && CODES[error.code] == text(expect, "code"), error.what());
    ensure(!has(expect, "reason") || error.reason == text(expect, "reason"), error.reason);
    ensure(!has(expect, "field") || error.field_violations.count(prefix + text(expect, "field")), "fields at fault");
    return error;
  }
  throw std::runtime_error("the call did not fail");
}

void drain(Client& client, const v1::InferRequest& asked) {
  const auto stream = client.stream(asked);
  for (v1::StreamInferResponse event; stream->next(event);) continue;
}

// `patient` tries again where the server says so, `hasty` does not.
struct Conformance {
  std::string address;
  magnitude::Options options;
  Client patient{address, options};
  Client hasty{address, without_retries(options)};

  static magnitude::Options without_retries(magnitude::Options options) {
    options.retries = false;
    return options;
  }

  void run(const Json& s) {
    const auto kind = text(s, "kind");
    if (kind == "unary") unary(s);
    else if (kind == "stream") stream(s);
    else if (kind == "conversation") conversation(s);
    else if (kind == "cancel") cancel(s);
    else if (kind == "deadline") deadline(s);
    else if (kind == "refused") refused(s);
    else if (kind == "rejected") return rejected(s);
    else if (kind == "balanced") balanced(s);
    else if (kind == "repeated") repeated(s);
    else if (kind == "lost") lost(s);
    else if (kind == "exhausted") exhausted(s);
    else if (kind == "retried") retried(s);
    else if (kind == "session") session(s);
    else if (kind == "snapshot") snapshot(s);
    else ensure(false, "this client has no scenarios of kind " + kind);
    idle();
  }

  void unary(const Json& s) {
    const auto asked = request(s);
    const auto answer = patient.infer(asked);
    for (const auto& [name, value] : asked.metadata()) ensure(answer.metadata().at(name) == value, "metadata");
    check_answer(at(s, "expect"), answer.choices(0).text(), answer.choices(0).end(), answer.usage());
  }

  void stream(const Json& s) {
    const auto whole = patient.infer(request(s)).choices(0).text();
    const auto stream = patient.stream(request(s));
    std::string joined;
    int deltas = 0;
    for (const auto& text : stream->texts()) {
      ensure(stream->started && !stream->finished, "a delta out of its place");
      joined += text;
      ++deltas;
    }
    ensure(stream->finished.has_value(), "the stream ended without `finished`");
    ensure(joined == whole, "the deltas come to " + joined);
    ensure(deltas >= number(at(s, "expect"), "deltasMin"), std::to_string(deltas) + " deltas");
    check_answer(at(s, "expect"), joined, stream->finished->ends(0), stream->finished->usage());
  }

  void conversation(const Json& s) {
    auto chat = patient.conversation({magnitude::system("Be brief.")}, request(s));
    for (const auto& said : at(s, "says").list_value().values()) {
      const auto answer = chat.say(said.string_value());
      ensure(answer == text(at(s, "expect"), "text"), "the answer is " + answer);
    }
    ensure(static_cast<int>(chat.messages.size()) == number(at(s, "expect"), "messages"), "number of messages");
  }

  void cancel(const Json& s) {
    auto left = hasty.stream(request(s));
    int count = 0;
    for ([[maybe_unused]] const auto& text : left->texts()) {
      if (++count == number(s, "afterDeltas")) break;
    }
    left.reset();
    idle();
    const auto cancelled = hasty.stream(request(s));
    try {
      for ([[maybe_unused]] const auto& text : cancelled->texts()) cancelled->cancel();
    } catch (const CallError& error) {
      ensure(error.code == grpc::StatusCode::CANCELLED, error.what());
      return;
    }
    ensure(false, "the cancelled stream ended without an error");
  }

  void deadline(const Json& s) {
    auto bounded_options = without_retries(options);
    bounded_options.timeout = std::chrono::milliseconds(number(s, "timeoutMs"));
    Client bounded(address, bounded_options);
    fails(at(s, "expect"), [&] { bounded.infer(request(s)); });
    fails(at(s, "expect"), [&] { drain(bounded, request(s)); });
  }

  void refused(const Json& s) {
    fails(at(s, "expect"), [&] { patient.infer(request(s)); });
    fails(at(s, "expect"), [&] { drain(patient, request(s)); }, "request.");
  }

  void rejected(const Json& s) {
    fails(at(s, "expect"), [&] { hasty.infer(request(s)); });
    fails(at(s, "expect"), [&] { drain(hasty, request(s)); });
  }

  void balanced(const Json& s) {
    std::set<std::string> wanted, answered;
    for (const auto& name : at(at(s, "expect"), "models").list_value().values()) wanted.insert(name.string_value());
    for (const auto end = Clock::now() + 10s; answered != wanted;) {
      answered.insert(patient.infer(request(s)).model());
      ensure(Clock::now() < end, "all answers are from " + *answered.begin());
    }
  }

  void repeated(const Json& s) {
    reads(s);
    auto session = new_session(), brought = new_session();
    const auto expected = text(at(s, "expect"), "text");
    ensure(patient.infer(session.in(request(s))).choices(0).text() == expected, "the text");
    ensure(joined(session.in(request(s))) == expected, "the streamed text");
    ensure(session.save("state").version() == 1, "saved");
    ensure(versions(session) == 1, "number of versions");
    session.restore();
    brought.import_state(session.export_state());
    session.remove();
    brought.remove();
  }

  void lost(const Json& s) {
    reads(s);
    auto session = new_session(), brought = new_session();
    const auto& expect = at(s, "expect");
    fails(expect, [&] { patient.infer(session.in(request(s))); });
    fails(expect, [&] { drain(patient, session.in(request(s))); });
    fails(expect, [&] { session.save(); });
    ensure(versions(session) == 1, "number of versions");
    session.restore();
    const auto state = session.export_state();
    fails(expect, [&] { brought.import_state(state); });
    ensure(versions(brought) == 1, "number of versions brought over");
    fails(expect, [&] { session.remove(); });
    ensure(versions(session) == 0, "a version is left");
  }

  // Makes each call that changes nothing.
  void reads(const Json& s) {
    v1::HealthResponse health;
    magnitude::check(patient.health->Health(patient.context().get(), {}, &health));
    v1::ListModelsResponse models;
    magnitude::check(patient.models->ListModels(patient.context().get(), {}, &models));
    v1::TokenizeRequest hello;
    v1::TokenizeResponse tokens;
    hello.set_text("hello");
    magnitude::check(patient.inference->Tokenize(patient.context().get(), hello, &tokens));
    const auto expected = text(at(s, "expect"), "text");
    ensure(patient.infer(request(s)).choices(0).text() == expected, "the text");
    ensure(joined(request(s)) == expected, "the streamed text");
  }

  std::string joined(const v1::InferRequest& asked) {
    std::string whole;
    const auto stream = patient.stream(asked);
    for (const auto& part : stream->texts()) whole += part;
    return whole;
  }

  int versions(const magnitude::Session& session) {
    v1::ListRequest asked;
    v1::ListResponse found;
    asked.set_session_id(session.id);
    asked.set_all_versions(true);
    magnitude::check(patient.snapshots->List(patient.context().get(), asked, &found));
    return found.snapshots_size();
  }

  void exhausted(const Json& s) {
    const auto held = hold(s);
    const auto error = fails(at(s, "expect"), [&] { hasty.infer(request(s)); });
    ensure(error.retry_after && *error.retry_after > 0ms, "no delay to wait for");
  }

  void retried(const Json& s) {
    auto held = hold(s);
    try {
      hasty.infer(request(s));
      ensure(false, "the queue is not full");
    } catch (const CallError& full) {
      ensure(full.code == grpc::StatusCode::RESOURCE_EXHAUSTED, full.what());
    }
    const auto released = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(number(s, "releaseAfterMs")));
      held.clear();
    });
    unary(s);
  }

  void session(const Json& s) {
    auto session = new_session();
    say(session, s, 0);
    const auto saved = session.save();
    ensure(saved.version() == 1, saved.ShortDebugString());
    goes_on(session, s, say(session, s, 1));
  }

  void snapshot(const Json& s) {
    auto session = new_session(), brought = new_session();
    std::string agent_state(number(s, "agentStateBytes"), '\0');
    for (std::size_t i = 0; i < agent_state.size(); ++i) agent_state[i] = static_cast<char>(i % 251);
    say(session, s, 0);
    const auto saved = session.save(agent_state);
    ensure(saved.agent_state_bytes() == agent_state.size(), saved.ShortDebugString());
    const auto state = session.export_state();
    ensure(state.agent_state == agent_state && !state.key_value.empty(), "not what was saved");
    brought.import_state(state);
    goes_on(brought, s, say(session, s, 1));
    session.remove();
  }

  // Restores a session: it says again what it said first. Then it is forgotten.
  void goes_on(magnitude::Session& session, const Json& s, const std::string& first) {
    const auto& fidelity = v1::RestoreFidelity_Name(session.restore().fidelity());
    ensure(fidelity == text(at(s, "expect"), "fidelity"), fidelity);
    const auto again = say(session, s, 1);
    ensure(again == first, "it goes on with " + again + ", not with " + first);
    session.remove();
  }

  std::string say(const magnitude::Session& session, const Json& s, int index) {
    auto asked = request(s);
    asked.set_text(at(s, "says").list_value().values(index).string_value());
    return patient.infer(session.in(asked)).choices(0).text();
  }

  magnitude::Session new_session() {
    return patient.session("conformance/cpp/" + std::to_string(Clock::now().time_since_epoch().count()));
  }

  // Fills the server with streams that go on until they are destroyed.
  Streams hold(const Json& s) {
    Streams held;
    v1::StreamInferResponse event;
    while (static_cast<int>(held.size()) < number(s, "hold")) {
      held.push_back(patient.stream(request(s, "held")));
      held.back()->next(event);
    }
    return held;
  }

  // Waits until the server has nothing to do: what was cancelled has ended there too.
  void idle() {
    for (const auto end = Clock::now() + 10s;; std::this_thread::sleep_for(5ms)) {
      v1::GetLoadResponse answer;
      magnitude::check(hasty.inference->GetLoad(hasty.context().get(), {}, &answer));
      if (answer.load().running_requests() + answer.load().waiting_requests() == 0) return;
      ensure(Clock::now() < end, "the server is still busy");
    }
  }
};

}  // namespace

int main(int count, char** given) try {
  std::vector<std::string> arguments(given + 1, given + count);
  magnitude::Options options;
  for (; arguments.size() > 2; arguments.erase(arguments.begin(), arguments.begin() + 2)) {
    if (arguments[0] != "--token" && !options.tls) options.tls.emplace();
    if (arguments[0] == "--ca") {
      options.tls->pem_root_certs = read(arguments[1]);
    } else if (arguments[0] == "--certificate") {
      options.tls->pem_cert_chain = read(arguments[1]);
    } else if (arguments[0] == "--key") {
      options.tls->pem_private_key = read(arguments[1]);
    } else {
      options.token = arguments[1];
    }
  }
  Conformance conformance{arguments.at(0), options};
  google::protobuf::ListValue scenarios;
  ensure(google::protobuf::util::JsonStringToMessage(read(arguments.at(1)), &scenarios).ok(), "the scenarios");
  bool failed = false;
  for (const auto& s : scenarios.values()) {
    const auto begin = Clock::now();
    try {
      conformance.run(s);
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      std::printf("ok %s (%d ms)\n", text(s, "name").c_str(), static_cast<int>(took.count()));
    } catch (const std::exception& error) {
      failed = true;
      std::printf("FAILED %s: %s\n", text(s, "name").c_str(), error.what());
    }
  }
  return failed;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 70;
}
