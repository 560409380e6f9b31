import type { Client, InferOptions, Message } from "./client.js";
import type { CallOptions } from "./stub.js";
import type { ChatMessage } from "./v1.js";

/** A chat whose messages are kept here and sent with each question; what the server has computed of them already it
 * does not compute again. */
export class Conversation {
  /** What was said so far. */
  messages: (Message | ChatMessage)[];

  constructor(
    private readonly client: Client,
    messages: readonly (Message | ChatMessage)[],
    private readonly options?: InferOptions,
  ) {
    this.messages = [...messages];
  }

  /** Asks something and returns the answer. */
  async say(content: string, call?: CallOptions): Promise<string> {
    let answer = "";
    for await (const text of this.stream(content, call)) answer += text;
    return answer;
  }

  /** Asks something; the answer comes in parts. Question and answer become messages when it is complete: one that
   * fails, or is left early, was not said. */
  async *stream(content: string, call?: CallOptions): AsyncGenerator<string> {
    const asked: (Message | ChatMessage)[] = [...this.messages, { role: "user", content }];
    let answer = "";
    for await (const text of this.client.stream(asked, this.options, call).texts()) {
      answer += text;
      yield text;
    }
    this.messages = [...asked, { role: "assistant", content: answer }];
  }
}
