package dev.magnitude.conformance;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.JsonFormat;
import dev.magnitude.client.AnswerStream;
import dev.magnitude.client.CallException;
import dev.magnitude.client.Client;
import dev.magnitude.client.Prompts;
import dev.magnitude.client.Session;
import dev.magnitude.v1.ChoiceEnd;
import dev.magnitude.v1.GetLoadRequest;
import dev.magnitude.v1.HealthRequest;
import dev.magnitude.v1.InferRequest;
import dev.magnitude.v1.ListModelsRequest;
import dev.magnitude.v1.ListRequest;
import dev.magnitude.v1.TokenizeRequest;
import dev.magnitude.v1.Usage;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * Runs the scenarios of tests/conformance: Conformance [--ca FILE] [--certificate FILE --key FILE] [--token TOKEN] ADDRESS
 * SCENARIOS.
 */
final class Conformance {
  /** Tries again where the server says so. */
  private final Client patient;

  private final Client hasty;

  private Conformance(Client patient, Client hasty) {
    this.patient = patient;
    this.hasty = hasty;
  }

  public static void main(String[] given) throws Exception {
    var arguments = new ArrayList<>(List.of(given));
    var builder = Client.builder(arguments.get(arguments.size() - 2));
    var options = new HashMap<String, String>();
    for (; arguments.size() > 2; arguments.subList(0, 2).clear()) {
      options.put(arguments.get(0), arguments.get(1));
    }
    if (options.containsKey("--ca")) {
      var tls = TlsChannelCredentials.newBuilder().trustManager(new File(options.get("--ca")));
      if (options.containsKey("--certificate")) {
        tls.keyManager(new File(options.get("--certificate")), new File(options.get("--key")));
      }
      builder.tls(tls.build());
    }
    if (options.containsKey("--token")) {
      builder.token(options.get("--token"));
    }
    var conformance = new Conformance(builder.retries(true).build(), builder.retries(false).build());
    var failed = false;
    for (var s : new Gson().fromJson(Files.readString(Path.of(arguments.get(1))), JsonObject[].class)) {
      var begin = System.nanoTime();
      var name = s.get("name").getAsString();
      try {
        conformance.run(s);
        System.out.printf("ok %s (%d ms)%n", name, (System.nanoTime() - begin) / 1_000_000);
      } catch (Exception | AssertionError error) {
        failed = true;
        System.out.printf("FAILED %s: %s%n", name, error);
      }
    }
    conformance.patient.close();
    conformance.hasty.close();
    System.exit(failed ? 1 : 0);
  }

  private void run(JsonObject s) throws Exception {
    var kind = s.get("kind").getAsString();
    switch (kind) {
      case "unary" -> unary(s);
      case "stream" -> stream(s);
      case "conversation" -> conversation(s);
      case "cancel" -> cancel(s);
      case "deadline" -> deadline(s);
      case "refused" -> refused(s);
      case "rejected" -> rejected(s);
      case "balanced" -> balanced(s);
      case "repeated" -> repeated(s);
      case "lost" -> lost(s);
      case "exhausted" -> exhausted(s);
      case "retried" -> retried(s);
      case "session" -> session(s);
      case "snapshot" -> snapshot(s);
      default -> throw new AssertionError("this client has no scenarios of kind " + kind);
    }
    if (!kind.equals("rejected")) {
      idle();
    }
  }

  private void unary(JsonObject s) throws IOException {
    var request = request(s, "request");
    var answer = patient.infer(request);
    check(answer.getMetadataMap().equals(request.getMetadataMap()), "metadata", answer.getMetadataMap());
    var choice = answer.getChoices(0);
    checkAnswer(s, choice.getText(), choice.getEnd(), answer.getUsage());
  }

  private void stream(JsonObject s) throws IOException {
    var whole = patient.infer(request(s, "request")).getChoices(0).getText();
    try (var stream = patient.stream(request(s, "request"))) {
      var deltas = stream.texts()
          .peek(text -> check(stream.started() != null && stream.finished() == null, "a delta out of its place", text))
          .collect(Collectors.toList());
      check(stream.finished() != null, "`finished`", null);
      check(String.join("", deltas).equals(whole), "deltas", deltas);
      check(deltas.size() >= expect(s).get("deltasMin").getAsInt(), "number of deltas", deltas.size());
      checkAnswer(s, whole, stream.finished().getEnds(0), stream.finished().getUsage());
    }
  }

  private void conversation(JsonObject s) throws IOException {
    var chat = patient.conversation(List.of(Prompts.system("Be brief.")), request(s, "request"));
    for (var said : s.getAsJsonArray("says")) {
      var answer = chat.say(said.getAsString());
      check(answer.equals(expect(s).get("text").getAsString()), "answer", answer);
    }
    check(chat.messages().size() == expect(s).get("messages").getAsInt(), "messages", chat.messages());
  }

  private void cancel(JsonObject s) throws Exception {
    try (var stream = hasty.stream(request(s, "request"))) {
      var count = stream.texts().limit(s.get("afterDeltas").getAsInt()).count();
      check(count == s.get("afterDeltas").getAsInt(), "deltas", count);
    }
    idle();
    var stream = hasty.stream(request(s, "request"));
    try {
      stream.texts().forEach(text -> stream.close());
    } catch (CallException error) {
      check(error.code() == Status.Code.CANCELLED, "code", error);
      return;
    }
    throw new AssertionError("the cancelled stream ended without an error");
  }

  private void deadline(JsonObject s) throws IOException {
    var request = request(s, "request");
    var bounded = hasty.withTimeout(Duration.ofMillis(s.get("timeoutMs").getAsLong()));
    fails(s, "", () -> bounded.infer(request));
    fails(s, "", () -> bounded.stream(request).texts().count());
  }

  private void refused(JsonObject s) throws IOException {
    var request = request(s, "request");
    fails(s, "", () -> patient.infer(request));
    fails(s, "request.", () -> patient.stream(request).texts().count());
  }

  private void rejected(JsonObject s) throws IOException {
    var request = request(s, "request");
    fails(s, "", () -> hasty.infer(request));
    fails(s, "", () -> hasty.stream(request).texts().count());
  }

  private void balanced(JsonObject s) throws IOException {
    var wanted = new HashSet<String>();
    expect(s).getAsJsonArray("models").forEach(name -> wanted.add(name.getAsString()));
    var answered = new HashSet<String>();
    for (var end = System.nanoTime() + 10_000_000_000L; !answered.equals(wanted); ) {
      answered.add(patient.infer(request(s, "request")).getModel());
      check(System.nanoTime() < end, "all answers are from", answered);
    }
  }

  private void repeated(JsonObject s) throws IOException {
    reads(s);
    var session = newSession();
    var brought = newSession();
    var expected = expect(s).get("text").getAsString();
    var asked = session.in(request(s, "request"));
    check(patient.infer(asked).getChoices(0).getText().equals(expected), "text", asked);
    check(joined(asked).equals(expected), "streamed text", asked);
    check(session.save(ByteString.copyFromUtf8("state")).getVersion() == 1, "saved", session.id());
    check(versions(session) == 1, "versions of", session.id());
    session.restore();
    brought.importState(session.exportState());
    session.delete();
    brought.delete();
  }

  private void lost(JsonObject s) throws IOException {
    reads(s);
    var session = newSession();
    var brought = newSession();
    var asked = session.in(request(s, "request"));
    fails(s, "", () -> patient.infer(asked));
    fails(s, "", () -> patient.stream(asked).texts().count());
    fails(s, "", session::save);
    check(versions(session) == 1, "versions of", session.id());
    session.restore();
    var state = session.exportState();
    fails(s, "", () -> brought.importState(state));
    check(versions(brought) == 1, "versions of", brought.id());
    fails(s, "", session::delete);
    check(versions(session) == 0, "versions of", session.id());
  }

  /** Makes each call that changes nothing. */
  private void reads(JsonObject s) throws IOException {
    patient.call(() -> patient.health().health(HealthRequest.getDefaultInstance()));
    patient.call(() -> patient.models().listModels(ListModelsRequest.getDefaultInstance()));
    patient.call(() -> patient.inference().tokenize(TokenizeRequest.newBuilder().setText("hello").build()));
    var request = request(s, "request");
    var expected = expect(s).get("text").getAsString();
    check(patient.infer(request).getChoices(0).getText().equals(expected), "text", request);
    check(joined(request).equals(expected), "streamed text", request);
  }

  private String joined(InferRequest request) {
    try (var stream = patient.stream(request)) {
      return stream.texts().collect(Collectors.joining());
    }
  }

  private int versions(Session session) {
    var request = ListRequest.newBuilder().setSessionId(session.id()).setAllVersions(true).build();
    return patient.call(() -> patient.snapshots().list(request)).getSnapshotsCount();
  }

  private void exhausted(JsonObject s) throws IOException {
    var request = request(s, "request");
    try (var held = new Held()) {
      hold(s, held);
      var error = fails(s, "", () -> hasty.infer(request));
      check(error.retryAfter().filter(delay -> !delay.isZero()).isPresent(), "delay", error.retryAfter());
    }
  }

  private void retried(JsonObject s) throws IOException {
    try (var held = new Held()) {
      hold(s, held);
      try {
        hasty.infer(request(s, "request"));
        throw new AssertionError("the queue is not full");
      } catch (CallException full) {
        check(full.code() == Status.Code.RESOURCE_EXHAUSTED, "code", full);
      }
      CompletableFuture.delayedExecutor(s.get("releaseAfterMs").getAsLong(), TimeUnit.MILLISECONDS).execute(held::close);
      unary(s);
    }
  }

  private void session(JsonObject s) throws IOException {
    var session = newSession();
    say(session, s, 0);
    var saved = session.save();
    check(saved.getVersion() == 1, "saved", saved);
    goesOn(session, s, say(session, s, 1));
  }

  private void snapshot(JsonObject s) throws IOException {
    var session = newSession();
    var brought = newSession();
    var bytes = new byte[s.get("agentStateBytes").getAsInt()];
    for (var i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) (i % 251);
    }
    var agentState = ByteString.copyFrom(bytes);
    say(session, s, 0);
    var saved = session.save(agentState);
    check(saved.getAgentStateBytes() == bytes.length, "saved", saved);
    var state = session.exportState();
    check(state.agentState().equals(agentState) && !state.keyValue().isEmpty(), "not what was saved", saved);
    brought.importState(state);
    goesOn(brought, s, say(session, s, 1));
    session.delete();
  }

  /** Restores a session: it says again what it said first. Then it is forgotten. */
  private void goesOn(Session session, JsonObject s, String first) throws IOException {
    var fidelity = session.restore().getFidelity().name();
    check(fidelity.equals(expect(s).get("fidelity").getAsString()), "fidelity", fidelity);
    var again = say(session, s, 1);
    check(again.equals(first), "it goes on otherwise", again);
    session.delete();
  }

  private String say(Session session, JsonObject s, int index) throws IOException {
    var request = request(s, "request").toBuilder().setText(s.getAsJsonArray("says").get(index).getAsString());
    return patient.infer(session.in(request.build())).getChoices(0).getText();
  }

  private Session newSession() {
    return patient.session("conformance/java/" + UUID.randomUUID());
  }

  /** Streams that end together. */
  private static final class Held implements AutoCloseable {
    private final List<AnswerStream> streams = new CopyOnWriteArrayList<>();

    @Override
    public void close() {
      streams.forEach(AnswerStream::close);
    }
  }

  /** Fills the server with streams that go on until they are closed. */
  private void hold(JsonObject s, Held held) throws IOException {
    for (var left = s.get("hold").getAsInt(); left > 0; left--) {
      var stream = patient.stream(request(s, "held"));
      held.streams.add(stream);
      stream.next();
    }
  }

  /** Waits until the server has nothing to do: what was cancelled has ended there too. */
  private void idle() throws InterruptedException {
    for (var end = System.nanoTime() + 10_000_000_000L; ; Thread.sleep(5)) {
      var load = hasty.call(() -> hasty.inference().getLoad(GetLoadRequest.getDefaultInstance())).getLoad();
      if (load.getRunningRequests() + load.getWaitingRequests() == 0) {
        return;
      }
      check(System.nanoTime() < end, "the server is still busy", load);
    }
  }

  private static InferRequest request(JsonObject s, String name) throws InvalidProtocolBufferException {
    var request = InferRequest.newBuilder();
    JsonFormat.parser().merge(s.get(name).toString(), request);
    return request.build();
  }

  private static JsonObject expect(JsonObject s) {
    return s.getAsJsonObject("expect");
  }

  private static void checkAnswer(JsonObject s, String text, ChoiceEnd end, Usage usage) {
    check(!expect(s).has("text") || expect(s).get("text").getAsString().equals(text), "text", text);
    check(end.getFinishReason().name().equals(expect(s).get("finishReason").getAsString()), "end", end);
    check(usage.getCompletionTokens() == expect(s).get("completionTokens").getAsInt(), "usage", usage);
  }

  private static CallException fails(JsonObject s, String prefix, Runnable call) {
    try {
      call.run();
    } catch (CallException error) {
      check(error.code().name().equals(expect(s).get("code").getAsString()), "code", error);
      check(!expect(s).has("reason") || expect(s).get("reason").getAsString().equals(error.reason()), "reason", error);
      var field = expect(s).has("field") ? prefix + expect(s).get("field").getAsString() : null;
      check(field == null || error.fieldViolations().containsKey(field), "fields", error.fieldViolations());
      return error;
    }
    throw new AssertionError("the call did not fail");
  }

  private static void check(boolean holds, String what, Object found) {
    if (!holds) {
      throw new AssertionError(what + ": " + found);
    }
  }
}
