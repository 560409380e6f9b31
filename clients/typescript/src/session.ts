import { createHash } from "node:crypto";

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";

import type { Client, InferOptions } from "./client.js";
import { CallError } from "./errors.js";
import type { CallOptions } from "./stub.js";
import { StateEndSchema } from "./v1.js";
import type { DeleteResponse, ImportStateRequestSchema, RestoreResponse, Snapshot } from "./v1.js";
import type { StateChunk, StateEnd, StateHeader } from "./v1.js";

/** A message of a state holds so much at most. */
const CHUNK_BYTES = 1 << 20;
/** `save` takes so much in one message; more goes in a stream. */
const AGENT_STATE_BYTES_MAX = 4 << 20;

type Part = MessageInitShape<typeof ImportStateRequestSchema>;
type ImportHeader = Extract<NonNullable<(Part & object)["part"]>, { case: "header" }>["value"];

/** A version of a session, whole: to be kept, or to be brought to another server. */
export interface State {
  header?: StateHeader;
  /** The application's own bytes. */
  agentState: Uint8Array;
  /** The pages; none where they were not kept. */
  keyValue: Uint8Array;
}

/** What the server keeps under a name: tokens, their key/value cache, and bytes of the application's own. */
export class Session {
  constructor(
    private readonly client: Client,
    readonly id: string,
  ) {}

  /** Makes a request one of the session: what it holds is put behind what the session has already. */
  in(options: InferOptions = {}): InferOptions {
    return { ...options, sessionId: this.id };
  }

  /** Makes a new version of the session, with bytes of any length; without any it keeps those of the parent version. */
  async save(agentState?: Uint8Array, call?: CallOptions): Promise<Snapshot> {
    if (!agentState || agentState.length <= AGENT_STATE_BYTES_MAX) {
      const request = { sessionId: this.id, agentState };
      return (await this.client.change(call, (bounded) => this.client.snapshots.save(request, bounded))).snapshot!;
    }
    const state = { agentState, keyValue: new Uint8Array() };
    return this.send({ target: { case: "liveSessionId", value: this.id } }, state, call);
  }

  /** Brings the latest version back. */
  restore(call?: CallOptions): Promise<RestoreResponse> {
    return this.client.snapshots.restore({ snapshot: { sessionId: this.id } }, call);
  }

  /** Deletes all versions, and ends the session. */
  delete(call?: CallOptions): Promise<DeleteResponse> {
    return this.client.change(call, (bounded) => this.client.snapshots.delete({ sessionId: this.id }, bounded));
  }

  /** Fetches the latest version. Every byte is checked; what is damaged is a CallError of DATA_LOSS. */
  async export(call?: CallOptions): Promise<State> {
    const source = { case: "snapshot", value: { sessionId: this.id } } as const;
    const contents = { agentState: new Content(), keyValue: new Content() };
    let header: StateHeader | undefined;
    for await (const { part } of this.client.snapshots.exportState({ source }, call)) {
      if (part.case === "header") header = part.value;
      if (part.case === "agentState" || part.case === "keyValue") contents[part.case].add(part.value);
      if (part.case === "end") {
        const state = { header, agentState: contents.agentState.joined(), keyValue: contents.keyValue.joined() };
        compare(state, part.value);
        return state;
      }
    }
    throw damaged("it ended too soon");
  }

  /** Saves a state as the session's next version. The session need not be live. */
  import(state: State, call?: CallOptions): Promise<Snapshot> {
    return this.send({ target: { case: "sessionId", value: this.id }, state: state.header }, state, call);
  }

  private async send(header: ImportHeader, state: State, call?: CallOptions): Promise<Snapshot> {
    const attempt = (bounded: CallOptions) => this.client.snapshots.importState(parts(header, state), bounded);
    return (await this.client.change(call, attempt)).snapshot!;
  }
}

async function* parts(header: ImportHeader, state: State): AsyncGenerator<Part> {
  yield { part: { case: "header", value: header } };
  for (const value of chunks(state.agentState)) yield { part: { case: "agentState", value } };
  for (const value of chunks(state.keyValue)) yield { part: { case: "keyValue", value } };
  yield { part: { case: "end", value: end(state) } };
}

function* chunks(bytes: Uint8Array) {
  for (let begin = 0; begin < bytes.length; begin += CHUNK_BYTES) {
    const content = bytes.subarray(begin, begin + CHUNK_BYTES);
    yield { offsetBytes: BigInt(begin), content, crc32c: crc32c(content) };
  }
}

/** Bytes that come in chunks, each in its place and whole. */
class Content {
  private readonly chunks: Uint8Array[] = [];
  private length = 0;

  add({ offsetBytes, content, crc32c: sum }: StateChunk): void {
    if (offsetBytes !== BigInt(this.length) || crc32c(content) !== sum) {
      throw damaged(`the chunk at ${offsetBytes} is wrong`);
    }
    this.chunks.push(content);
    this.length += content.length;
  }

  joined(): Uint8Array {
    return Buffer.concat(this.chunks);
  }
}

/** What a state must come to. */
function end({ agentState, keyValue }: State): StateEnd {
  const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest();
  return create(StateEndSchema, {
    agentStateBytes: BigInt(agentState.length),
    agentStateSha256: sha256(agentState),
    keyValueBytes: BigInt(keyValue.length),
    keyValueSha256: sha256(keyValue),
  });
}

/** Holds a state against what was sent of it. */
function compare(state: State, sent: StateEnd): void {
  const found = end(state);
  if (found.agentStateBytes !== sent.agentStateBytes || found.keyValueBytes !== sent.keyValueBytes) {
    throw damaged("its sizes are wrong");
  }
  for (const name of ["agentState", "keyValue"] as const) {
    if (state[name].length && Buffer.compare(found[`${name}Sha256`], sent[`${name}Sha256`])) {
      throw damaged("its hashes are wrong");
    }
  }
}

const damaged = (what: string) => new CallError(status.DATA_LOSS, `The state is damaged: ${what}.`);

/** CRC-32C of each byte, with its bits reflected: the polynomial is 1EDC6F41. */
const CRC32C = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});

function crc32c(bytes: Uint8Array): number {
  let sum = ~0;
  for (const byte of bytes) sum = CRC32C[(sum ^ byte) & 0xff]! ^ (sum >>> 8);
  return ~sum >>> 0;
}
