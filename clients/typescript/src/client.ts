/** A thin client: one object per server, plain arguments in, the contract's messages out. */

import { readFileSync } from "node:fs";

import { create, isMessage, type MessageInitShape } from "@bufbuild/protobuf";
import { Client as Channel, credentials, Metadata, type ChannelCredentials, type ChannelOptions } from "@grpc/grpc-js";

import { Conversation } from "./conversation.js";
import { ATTEMPTS_MAX, attemptsOf, change, changeStreamed } from "./retry.js";
import { SERVICE_CONFIG } from "./service_config.js";
import { Session } from "./session.js";
import { Stream } from "./stream.js";
import { stub, type CallOptions, type Stub } from "./stub.js";
import * as v1 from "./v1.js";

/** How to encrypt: paths of PEM files. Without `ca` the system's authorities are trusted. */
export interface Tls {
  ca?: string;
  /** The client's own, for mutual TLS. */
  certificate?: string;
  key?: string;
}

/** How to connect. */
export interface ClientOptions {
  tls?: boolean | Tls;
  /** Sent as a bearer token with every call. It needs TLS. */
  token?: string;
  /** Bounds each call that has no bound of its own. Absent: no bound. */
  timeoutMs?: number;
  /** Without them a refusal that would pass is thrown at once, with how long to wait. Default: true. */
  retries?: boolean;
  /** gRPC's own: keepalive, proxies, names. */
  channelOptions?: ChannelOptions;
}

/** A message of a chat, with a plain role and text. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool" | "developer";
  content: string;
}

/** Text, token ids, or the messages of a chat. */
export type Prompt = string | readonly number[] | readonly (Message | v1.ChatMessage)[];

/** Everything else of a request: `{ sampling: { temperature: 0 }, stopping: { maxTokens: 64 } }`. What is absent takes
 * the server's default, which stands beside each field. */
export type InferOptions = Omit<MessageInitShape<typeof v1.InferRequestSchema> & object, "input" | "$typeName">;

/** A connection to one server, or to all that a name stands for. Close it when it is over. */
export class Client {
  readonly inference: Stub<typeof v1.InferenceService>;
  readonly models: Stub<typeof v1.ModelService>;
  readonly health: Stub<typeof v1.HealthService>;
  readonly snapshots: Stub<typeof v1.SnapshotService>;
  private readonly inferenceOnce: Stub<typeof v1.InferenceService>;
  private readonly channels: Channel[];
  private readonly attempts: number;
  private readonly timeoutMs?: number;

  /** `address` is "host:port", "ipv4:10.0.0.1:50051,10.0.0.2:50051", "dns:///name:port", or any other name that gRPC
   * resolves. */
  constructor(address = "127.0.0.1:50051", options: ClientOptions = {}) {
    const { retries = true, timeoutMs } = options;
    const channelCredentials = credentialsOf(options);
    const connect = (enableRetries: boolean) =>
      new Channel(address, channelCredentials, {
        "grpc.service_config": JSON.stringify(SERVICE_CONFIG),
        "grpc.enable_retries": Number(enableRetries),
        "grpc.max_receive_message_length": -1,
        ...options.channelOptions,
      });
    const [channel, once] = [connect(retries), connect(false)];
    this.channels = [channel, once];
    this.attempts = retries ? ATTEMPTS_MAX : 1;
    this.timeoutMs = timeoutMs;
    this.inference = stub(v1.InferenceService, channel, timeoutMs);
    this.models = stub(v1.ModelService, channel, timeoutMs);
    this.health = stub(v1.HealthService, channel, timeoutMs);
    this.snapshots = stub(v1.SnapshotService, channel, timeoutMs);
    this.inferenceOnce = stub(v1.InferenceService, once);
  }

  /** The whole answer. */
  infer(prompt: Prompt, options?: InferOptions, call?: CallOptions): Promise<v1.InferResponse> {
    const request = inferRequest(prompt, options);
    if (!request.sessionId) return this.inference.infer(request, call);
    const attempts = attemptsOf(request, this.attempts);
    return change(attempts, this.bounds(call), (bounded) => this.inferenceOnce.infer(request, bounded));
  }

  /** The answer as it comes. */
  stream(prompt: Prompt, options?: InferOptions, call?: CallOptions): Stream {
    const request = inferRequest(prompt, options);
    if (!request.sessionId) return new Stream(this.inference.streamInfer({ request }, call));
    const begin = (bounded: CallOptions) => this.inferenceOnce.streamInfer({ request }, bounded);
    return new Stream(changeStreamed(attemptsOf(request, this.attempts), this.bounds(call), begin));
  }

  /** A chat that begins with some messages, often one of the system's; `options` are those of every answer. */
  conversation(messages: readonly (Message | v1.ChatMessage)[] = [], options?: InferOptions): Conversation {
    return new Conversation(this, messages, options);
  }

  /** A session by its name. The first request begins it; what was saved of it comes back by itself. */
  session(id: string): Session {
    return new Session(this, id);
  }

  /** Makes a call that changes something, of any stub: again only where the server refused it for now. */
  change<Answer>(call: CallOptions | undefined, attempt: (call: CallOptions) => Promise<Answer>): Promise<Answer> {
    return change(this.attempts, this.bounds(call), attempt);
  }

  /** Ends the connection; open calls are cancelled. */
  close(): void {
    for (const channel of this.channels) channel.close();
  }

  private bounds(call?: CallOptions): CallOptions {
    return { timeoutMs: this.timeoutMs, ...call };
  }
}

function inferRequest(prompt: Prompt, options: InferOptions = {}): v1.InferRequest {
  return create(v1.InferRequestSchema, { ...options, input: input(prompt) });
}

function input(prompt: Prompt): v1.InferRequest["input"] {
  if (typeof prompt === "string") return { case: "text", value: prompt };
  if (typeof prompt[0] === "number") {
    return { case: "tokenIds", value: create(v1.TokenIdsSchema, { ids: [...(prompt as readonly number[])] }) };
  }
  const messages = (prompt as readonly (Message | v1.ChatMessage)[]).map(chatMessage);
  return { case: "chat", value: create(v1.ChatInputSchema, { messages }) };
}

function chatMessage(message: Message | v1.ChatMessage): v1.ChatMessage {
  if (isMessage(message, v1.ChatMessageSchema)) return message;
  return create(v1.ChatMessageSchema, {
    role: v1.Role[message.role.toUpperCase() as keyof typeof v1.Role],
    content: [{ part: { case: "text", value: message.content } }],
  });
}

function credentialsOf({ tls, token }: ClientOptions): ChannelCredentials {
  if (!tls) {
    if (token !== undefined) throw new TypeError("A token needs TLS: it would be sent in the clear.");
    return credentials.createInsecure();
  }
  const { ca, certificate, key }: Tls = tls === true ? {} : tls;
  const read = (path?: string) => (path === undefined ? null : readFileSync(path));
  const channel = credentials.createSsl(read(ca), read(key), read(certificate));
  if (token === undefined) return channel;
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${token}`);
  return credentials.combineChannelCredentials(
    channel,
    credentials.createFromMetadataGenerator((_, done) => done(null, metadata)),
  );
}
