package dev.magnitude.client;

import dev.magnitude.v1.ChatInput;
import dev.magnitude.v1.ChatMessage;
import dev.magnitude.v1.ContentPart;
import dev.magnitude.v1.InferRequest;
import dev.magnitude.v1.Role;
import java.util.List;

/**
 * Requests that want only their options yet: {@code Prompts.text("…").setStopping(…).build()}. What is absent takes
 * the server's default, which stands beside each field of the contract.
 */
public final class Prompts {
  private Prompts() {}

  /** Goes on with a text. */
  public static InferRequest.Builder text(String text) {
    return InferRequest.newBuilder().setText(text);
  }

  /** Asks for the next message of a chat. */
  public static InferRequest.Builder chat(ChatMessage... messages) {
    return InferRequest.newBuilder().setChat(ChatInput.newBuilder().addAllMessages(List.of(messages)));
  }

  /** An instruction. */
  public static ChatMessage system(String text) {
    return message(Role.ROLE_SYSTEM, text);
  }

  /** What the person says. */
  public static ChatMessage user(String text) {
    return message(Role.ROLE_USER, text);
  }

  /** What the model said. */
  public static ChatMessage assistant(String text) {
    return message(Role.ROLE_ASSISTANT, text);
  }

  private static ChatMessage message(Role role, String text) {
    return ChatMessage.newBuilder().setRole(role).addContent(ContentPart.newBuilder().setText(text)).build();
  }
}
