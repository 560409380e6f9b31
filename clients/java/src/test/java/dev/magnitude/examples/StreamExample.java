package dev.magnitude.examples;

import static dev.magnitude.client.Prompts.chat;
import static dev.magnitude.client.Prompts.user;

import dev.magnitude.client.Client;
import dev.magnitude.v1.StoppingParameters;

/** Streams an answer: StreamExample [ADDRESS] [PROMPT]. */
public final class StreamExample {
  private StreamExample() {}

  public static void main(String[] arguments) {
    var address = arguments.length > 0 ? arguments[0] : "127.0.0.1:50051";
    var prompt = arguments.length > 1 ? arguments[1] : "Write a haiku about rain.";
    var request = chat(user(prompt)).setStopping(StoppingParameters.newBuilder().setMaxTokens(64)).build();
    try (var client = Client.builder(address).build(); var stream = client.stream(request)) {
      stream.texts().forEach(System.out::print);
      var usage = stream.finished().getUsage();
      var rate = usage.getCompletionTokens() / Math.max(stream.finished().getTimings().getDecodeMs(), 1e-3) * 1e3;
      System.out.printf(
          "%n%d + %d tokens, %.1f tokens/s%n", usage.getPromptTokens(), usage.getCompletionTokens(), rate);
    }
  }
}
