import type { StreamFinished, StreamInferResponse, StreamStarted } from "./v1.js";

/** A streamed answer: an async iterable of its events, or of its text. It begins when it is iterated over, which can be
 * done once; leaving the loop early ends the request at the server. */
export class Stream implements AsyncIterable<StreamInferResponse> {
  /** Set as these events pass. */
  started?: StreamStarted;
  finished?: StreamFinished;

  constructor(private readonly events: AsyncIterable<StreamInferResponse>) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamInferResponse> {
    for await (const event of this.events) {
      if (event.event.case === "started") this.started = event.event.value;
      if (event.event.case === "finished") this.finished = event.event.value;
      yield event;
    }
  }

  /** The text of one choice, as it comes. */
  async *texts(choice = 0): AsyncGenerator<string> {
    for await (const { event } of this) {
      if (event.case === "delta" && event.value.index === choice && event.value.text) yield event.value.text;
    }
  }
}
