/** Magnitude for Node: `Client` talks to a server, `@magnitude/client/v1` is its contract. */

export { Client, type ClientOptions, type InferOptions, type Message, type Prompt, type Tls } from "./client.js";
export { Conversation } from "./conversation.js";
export { CallError } from "./errors.js";
export { Session, type State } from "./session.js";
export { Stream } from "./stream.js";
export type { CallOptions, Stub } from "./stub.js";
export { status } from "@grpc/grpc-js";
