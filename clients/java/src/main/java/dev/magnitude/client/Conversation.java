package dev.magnitude.client;

import dev.magnitude.v1.ChatInput;
import dev.magnitude.v1.ChatMessage;
import dev.magnitude.v1.InferRequest;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * A chat whose messages are kept here and sent with each question; what the server has computed of them already it
 * does not compute again.
 */
public final class Conversation {
  private final Client client;
  private final InferRequest options;
  private List<ChatMessage> messages;

  Conversation(Client client, List<ChatMessage> messages, InferRequest options) {
    this.client = client;
    this.messages = List.copyOf(messages);
    this.options = options;
  }

  /** What was said so far. */
  public List<ChatMessage> messages() {
    return messages;
  }

  /** Asks something and returns the answer. */
  public String say(String text) {
    return say(text, part -> {});
  }

  /**
   * Asks something; the answer comes in parts, and is returned as a whole. Question and answer become messages when it
   * is complete: one that fails was not said.
   */
  public String say(String text, Consumer<String> each) {
    var asked = new ArrayList<>(messages);
    asked.add(Prompts.user(text));
    var answer = new StringBuilder();
    var request = options.toBuilder().setChat(ChatInput.newBuilder().addAllMessages(asked)).build();
    try (var stream = client.stream(request)) {
      stream.texts().forEach(part -> {
        each.accept(part);
        answer.append(part);
      });
    }
    asked.add(Prompts.assistant(answer.toString()));
    messages = List.copyOf(asked);
    return answer.toString();
  }
}
