/** What a call can fail with: a gRPC status, and the google.rpc details that the server sends with it. */

import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { status, type ServiceError } from "@grpc/grpc-js";

const STATUS_KEY = "grpc-status-details-bin";

/** A call failed. */
export class CallError extends Error {
  override readonly name = "CallError";
  /** The server's word for it ("CONTEXT_LENGTH_EXCEEDED"); empty if it did not come from the server. */
  reason = "";
  /** The parts of the message by name. */
  details: Record<string, string> = {};
  /** The paths of fields at fault, with what is wrong. */
  fieldViolations: Record<string, string> = {};
  /** How long to wait, where waiting helps. */
  retryAfterMs?: number;

  constructor(
    /** The gRPC status. */
    readonly code: status,
    message: string,
    options?: ErrorOptions,
  ) {
    super(`${status[code]}: ${message}`, options);
  }
}

/** The CallError of whatever a call failed with. */
export function callError(cause: unknown): CallError {
  if (cause instanceof CallError) return cause;
  const { code = status.UNKNOWN, details = String(cause), metadata } = cause as Partial<ServiceError>;
  const error = new CallError(code, details, { cause });
  const [trailer] = metadata?.get(STATUS_KEY) ?? [];
  if (trailer instanceof Uint8Array) readStatus(trailer, error);
  return error;
}

/** Fills in the details of a google.rpc.Status: ErrorInfo, RetryInfo and BadRequest. Comments name the fields. */
function readStatus(trailer: Uint8Array, error: CallError): void {
  for (const any of fields(trailer).messages(3 /* details */)) {
    const value = any.message(2 /* value */);
    switch (any.text(1 /* type_url */).split("/").pop()) {
      case "google.rpc.ErrorInfo":
        error.reason = value.text(1 /* reason */);
        error.details = pairs(value.messages(3 /* metadata */));
        break;
      case "google.rpc.RetryInfo": {
        const delay = value.message(1 /* retry_delay */);
        error.retryAfterMs = delay.number(1 /* seconds */) * 1e3 + delay.number(2 /* nanos */) / 1e6;
        break;
      }
      case "google.rpc.BadRequest":
        error.fieldViolations = pairs(value.messages(1 /* field_violations: field 1, description 2 */));
    }
  }
}

/** Entries of a map, or of any message whose first two fields are a name and a text. */
function pairs(entries: Fields[]): Record<string, string> {
  return Object.fromEntries(entries.map((entry) => [entry.text(1), entry.text(2)]));
}

/** A message of which only the numbers of the fields are known: google.rpc has no generated code on npm. */
class Fields {
  readonly found = new Map<number, (Uint8Array | number)[]>();

  messages(number: number): Fields[] {
    return this.bytes(number).map(fields);
  }
  message(number: number): Fields {
    return this.messages(number)[0] ?? new Fields();
  }
  text(number: number): string {
    return new TextDecoder().decode(this.bytes(number)[0]);
  }
  number(number: number): number {
    return Number(this.found.get(number)?.[0] ?? 0);
  }
  private bytes(number: number): Uint8Array[] {
    return (this.found.get(number) ?? []).filter((value) => value instanceof Uint8Array);
  }
}

function fields(content: Uint8Array): Fields {
  const reader = new BinaryReader(content);
  const made = new Fields();
  while (reader.pos < reader.len) {
    const [number, type] = reader.tag();
    if (type !== WireType.LengthDelimited && type !== WireType.Varint) {
      reader.skip(type, number);
      continue;
    }
    const value = type === WireType.Varint ? Number(reader.int64()) : reader.bytes();
    made.found.set(number, [...(made.found.get(number) ?? []), value]);
  }
  return made;
}
