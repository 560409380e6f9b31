/** Calls that change something are made again only where the server refused them for now: an error with a delay says
 * that, and that nothing was done. What changes nothing gRPC itself repeats, as service_config.ts says. */

import { setTimeout as sleep } from "node:timers/promises";

import { status } from "@grpc/grpc-js";

import { callError, CallError } from "./errors.js";
import type { CallOptions } from "./stub.js";
import type { InferRequest } from "./v1.js";

/** How often a call is tried, as in the service config. */
export const ATTEMPTS_MAX = 4;

/** How often a request of a session is tried. What fails in saving it afterwards fails when the session has the answer
 * already: whether there was one cannot be told, so that such a request is never made again. */
export function attemptsOf(request: InferRequest, attempts: number): number {
  return request.snapshotAfterwards ? 1 : attempts;
}

/** What `attempt` answers; `call` bounds all attempts together. A wait that would not end before the deadline is none:
 * the refusal says more than that the time is over. */
export async function change<Answer>(
  attempts: number,
  { timeoutMs, signal }: CallOptions,
  attempt: (call: CallOptions) => Promise<Answer>,
): Promise<Answer> {
  const end = timeoutMs === undefined ? Infinity : Date.now() + timeoutMs;
  for (; ; attempts--) {
    try {
      return await attempt({ signal, timeoutMs: timeoutMs === undefined ? undefined : end - Date.now() });
    } catch (error) {
      const delay = callError(error).retryAfterMs;
      if (attempts <= 1 || delay === undefined || Date.now() + delay >= end) throw error;
      await sleep(delay, undefined, { signal }).catch(() => {
        throw new CallError(status.CANCELLED, "The call was cancelled.");
      });
    }
  }
}

/** The same for a stream of answers: it may be refused until its first one. */
export async function* changeStreamed<Answer>(
  attempts: number,
  call: CallOptions,
  begin: (call: CallOptions) => AsyncIterable<Answer>,
): AsyncGenerator<Answer> {
  let answers!: AsyncIterator<Answer>;
  const first = await change(attempts, call, (bounded) => {
    answers = begin(bounded)[Symbol.asyncIterator]();
    return answers.next();
  });
  try {
    for (let next = first; !next.done; next = await answers.next()) yield next.value;
  } finally {
    await answers.return?.();
  }
}
