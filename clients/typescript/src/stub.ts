/** Stubs in the language's own terms: promises for answers, async iterables for streams, AbortSignals for both. */

import { once } from "node:events";

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { DescMessage, DescMethod, DescService, MessageInitShape, MessageShape } from "@bufbuild/protobuf";
import type { GenService } from "@bufbuild/protobuf/codegenv2";
import { Metadata, type Client as Channel } from "@grpc/grpc-js";

import { callError } from "./errors.js";

/** What bounds one call. */
export interface CallOptions {
  /** Ends the call with DEADLINE_EXCEEDED. */
  timeoutMs?: number;
  /** Ends the call with CANCELLED. */
  signal?: AbortSignal;
}

/** The methods of a service. */
export type Stub<Service> = Service extends GenService<infer Methods>
  ? { readonly [Name in keyof Methods]: Call<Methods[Name]> }
  : never;

type Call<Method> = Method extends {
  methodKind: infer Kind;
  input: infer Input extends DescMessage;
  output: infer Output extends DescMessage;
}
  ? (
      request: Kind extends "client_streaming" ? AsyncIterable<MessageInitShape<Input>> : MessageInitShape<Input>,
      options?: CallOptions,
    ) => Kind extends "server_streaming" ? AsyncIterable<MessageShape<Output>> : Promise<MessageShape<Output>>
  : never;

type Input = MessageInitShape<DescMessage>;
type Output = MessageShape<DescMessage>;
interface Cancellable {
  cancel(): void;
}

/** Stubs of a service over a channel. `timeoutMs` bounds every call that has no bound of its own. */
export function stub<Service extends DescService>(
  service: Service,
  channel: Channel,
  timeoutMs?: number,
): Stub<Service> {
  const calls = service.methods.map((method) => {
    const call = KINDS[method.methodKind](channel, method) as (request: never, options: CallOptions) => unknown;
    return [method.localName, (request: never, options = {}) => call(request, { timeoutMs, ...options })];
  });
  return Object.fromEntries(calls) as Stub<Service>;
}

const unary = (channel: Channel, method: DescMethod) => (request: Input, options: CallOptions) =>
  new Promise<Output>((resolve, reject) => {
    const { path, encode, decode } = wire(method);
    const answered = (error: unknown, answer?: Output) => {
      release();
      if (error) reject(callError(error));
      else resolve(answer as Output);
    };
    const call = channel.makeUnaryRequest(path, encode, decode, request, new Metadata(), bounds(options), answered);
    const release = cancelOn(options.signal, call);
  });

const serverStreaming = (channel: Channel, method: DescMethod) =>
  async function* (request: Input, options: CallOptions): AsyncGenerator<Output> {
    const { path, encode, decode } = wire(method);
    const call = channel.makeServerStreamRequest(path, encode, decode, request, new Metadata(), bounds(options));
    call.on("error", () => {}); // what comes after the loop was left; inside it, the iterator throws it
    const release = cancelOn(options.signal, call);
    try {
      yield* call as AsyncIterable<Output>;
    } catch (error) {
      throw callError(error);
    } finally {
      release();
      call.cancel();
    }
  };

const clientStreaming =
  (channel: Channel, method: DescMethod) => async (requests: AsyncIterable<Input>, options: CallOptions) => {
    const { path, encode, decode } = wire(method);
    const { promise, resolve, reject } = deferred<Output>();
    const answered = (error: unknown, answer?: Output) => {
      if (error) reject(callError(error));
      else resolve(answer as Output);
    };
    const call = channel.makeClientStreamRequest(path, encode, decode, new Metadata(), bounds(options), answered);
    const release = cancelOn(options.signal, call);
    let ended = false;
    promise.catch(() => {}).finally(() => (ended = true));
    try {
      for await (const request of requests) {
        if (ended) break; // refused: the answer says why
        if (!call.write(request)) await Promise.race([once(call, "drain"), promise]);
      }
      call.end();
      return await promise;
    } finally {
      release();
      call.cancel();
    }
  };

const refuse = (_: Channel, method: DescMethod) => () => {
  throw new TypeError(`${method.name} streams both ways, which this client does not do.`);
};

const KINDS = {
  unary,
  server_streaming: serverStreaming,
  client_streaming: clientStreaming,
  bidi_streaming: refuse,
};

/** How a method goes over the wire. */
function wire(method: DescMethod) {
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    encode: (request: Input) => Buffer.from(toBinary(method.input, create(method.input, request))),
    decode: (content: Buffer) => fromBinary(method.output, content),
  };
}

function bounds({ timeoutMs }: CallOptions) {
  return timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs };
}

/** Cancels the call when the signal says so; the returned function ends that. */
function cancelOn(signal: AbortSignal | undefined, call: Cancellable): () => void {
  const cancel = () => call.cancel();
  if (signal?.aborted) cancel();
  signal?.addEventListener("abort", cancel);
  return () => signal?.removeEventListener("abort", cancel);
}

function deferred<T>() {
  let resolve!: (value: T) => void, reject!: (error: Error) => void;
  const promise = new Promise<T>((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
}
