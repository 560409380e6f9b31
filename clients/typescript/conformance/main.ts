/** Runs the scenarios of tests/conformance against a server:
 * node main.js [--ca FILE] [--certificate FILE --key FILE] [--token TOKEN] ADDRESS SCENARIOS */

import { deepStrictEqual as equal, ok, rejects } from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

import { fromJson, type JsonValue } from "@bufbuild/protobuf";

import { CallError, Client, status } from "../src/index.js";
import type { CallOptions, InferOptions, Session, Stream } from "../src/index.js";
import { FinishReason, InferRequestSchema, RestoreFidelity } from "../src/v1.js";
import type { ChoiceEnd, InferRequest, Usage } from "../src/v1.js";

interface Scenario {
  name: string;
  kind: string;
  request: JsonValue;
  held: JsonValue;
  says: string[];
  afterDeltas: number;
  hold: number;
  timeoutMs: number;
  releaseAfterMs: number;
  agentStateBytes: number;
  expect: {
    text?: string;
    finishReason: keyof typeof FinishReason;
    completionTokens: number;
    deltasMin: number;
    messages: number;
    code: keyof typeof status;
    reason?: string;
    field?: string;
    fidelity: string;
    models: string[];
  };
}

type Failure = Pick<Scenario["expect"], "code" | "reason" | "field">;

const { values, positionals } = parseArgs({
  options: {
    ca: { type: "string" },
    certificate: { type: "string" },
    key: { type: "string" },
    token: { type: "string" },
  },
  allowPositionals: true,
});
const [address, file] = positionals;
const { token, ...tls } = values;
const options = { tls: tls.ca ? tls : false, token };
/** Tries again where the server says so. */
const patient = new Client(address, options);
const hasty = new Client(address, { ...options, retries: false });

const kinds: Record<string, (s: Scenario) => Promise<void>> = {
  async unary({ request, expect }) {
    const sent = inferRequest(request);
    const answer = await patient.inference.infer(sent);
    equal(answer.metadata, sent.metadata);
    const [choice] = answer.choices;
    checkAnswer(expect, choice!.text, choice!.end, answer.usage);
  },

  async stream({ request, expect }) {
    const whole = await patient.inference.infer(inferRequest(request));
    const stream = streamOf(patient, request);
    const deltas: string[] = [];
    for await (const text of stream.texts()) {
      ok(stream.started && !stream.finished, "a delta before `started` or after `finished`");
      deltas.push(text);
    }
    const text = deltas.join("");
    equal(text, whole.choices[0]!.text);
    ok(deltas.length >= expect.deltasMin, `${deltas.length} deltas`);
    checkAnswer(expect, text, stream.finished?.ends[0], stream.finished?.usage);
  },

  async conversation({ request, says, expect }) {
    const { input: _, $typeName: __, ...options } = inferRequest(request);
    const chat = patient.conversation([{ role: "system", content: "Be brief." }], options);
    for (const text of says) equal(await chat.say(text), expect.text);
    equal(chat.messages.length, expect.messages);
  },

  async cancel({ request, afterDeltas }) {
    let count = 0;
    for await (const _ of streamOf(hasty, request).texts()) if (++count === afterDeltas) break;
    await idle();
    const controller = new AbortController();
    const texts = streamOf(hasty, request, { signal: controller.signal }).texts();
    const read = async () => {
      for await (const _ of texts) controller.abort();
    };
    await rejects(read, { code: status.CANCELLED });
  },

  async deadline({ request, timeoutMs, expect }) {
    await fails(hasty.inference.infer(inferRequest(request), { timeoutMs }), expect);
    await fails(drained(hasty, request, { timeoutMs }), expect);
  },

  async refused({ request, expect }) {
    await fails(patient.inference.infer(inferRequest(request)), expect);
    await fails(drained(patient, request), expect, "request.");
  },

  async rejected({ request, expect }) {
    await fails(hasty.inference.infer(inferRequest(request)), expect);
    await fails(drained(hasty, request), expect);
  },

  async balanced({ request, expect }) {
    const answered = new Set<string>();
    for (const end = Date.now() + 10_000; answered.size < expect.models.length; ) {
      const { model } = await patient.inference.infer(inferRequest(request));
      ok(expect.models.includes(model), `${model} answered`);
      answered.add(model);
      ok(Date.now() < end, `all answers are from ${[...answered]}`);
    }
  },

  async repeated(s) {
    const [session, brought] = [newSession(), newSession()];
    await reads(s);
    equal((await inSession(session, s)).choices[0]!.text, s.expect.text);
    equal(await streamedInSession(session, s), s.expect.text);
    equal((await session.save(new Uint8Array(5))).version, 1n);
    equal(await versions(session), 1);
    await session.restore();
    await brought.import(await session.export());
    await session.delete();
    await brought.delete();
  },

  async lost(s) {
    const [session, brought] = [newSession(), newSession()];
    const { code } = s.expect;
    await reads(s);
    await fails(inSession(session, s), { code });
    await fails(streamedInSession(session, s), { code });
    await fails(session.save(), { code });
    equal(await versions(session), 1);
    await session.restore();
    await fails(brought.import(await session.export()), { code });
    equal(await versions(brought), 1);
    await fails(session.delete(), { code });
    equal(await versions(session), 0);
  },

  async session(s) {
    const session = newSession();
    await say(session, s, 0);
    equal((await session.save()).version, 1n);
    await goesOn(session, s, await say(session, s, 1));
  },

  async snapshot(s) {
    const [session, brought] = [newSession(), newSession()];
    const agentState = new Uint8Array(s.agentStateBytes);
    for (let i = 0; i < agentState.length; i++) agentState[i] = i % 251;
    await say(session, s, 0);
    equal((await session.save(agentState)).agentStateBytes, BigInt(s.agentStateBytes));
    const state = await session.export();
    ok(Buffer.compare(state.agentState, agentState) === 0 && state.keyValue.length > 0, "not what was saved");
    await brought.import(state);
    await goesOn(brought, s, await say(session, s, 1));
    await session.delete();
  },

  async exhausted(s) {
    await holding(s, async () => {
      const error = await fails(hasty.inference.infer(inferRequest(s.request)), s.expect);
      ok(error.retryAfterMs! > 0, "no delay to wait for");
    });
  },

  async retried(s) {
    await holding(s, async (release) => {
      await rejects(hasty.inference.infer(inferRequest(s.request)), CallError);
      setTimeout(release, s.releaseAfterMs);
      await kinds.unary!(s);
    });
  },
};

const inferRequest = (json: JsonValue): InferRequest => fromJson(InferRequestSchema, json);

function streamOf(client: Client, json: JsonValue, call?: CallOptions) {
  const { input, $typeName: _, ...options } = inferRequest(json);
  equal(input.case, "text");
  return client.stream(input.value as string, options as InferOptions, call);
}

async function drained(client: Client, json: JsonValue, call?: CallOptions): Promise<void> {
  for await (const _ of streamOf(client, json, call));
}

/** Makes each call that changes nothing. */
async function reads({ request, expect }: Scenario): Promise<void> {
  ok((await patient.health.health({})).models.length);
  ok((await patient.models.listModels({})).models.length);
  ok((await patient.inference.tokenize({ input: { case: "text", value: "hello" } })).tokenIds.length);
  equal((await patient.inference.infer(inferRequest(request))).choices[0]!.text, expect.text);
  equal(await joined(streamOf(patient, request)), expect.text);
}

function inSession(session: Session, { request }: Scenario) {
  const { input, $typeName: _, ...options } = inferRequest(request);
  return patient.infer(input.value as string, session.in(options));
}

function streamedInSession(session: Session, { request }: Scenario): Promise<string> {
  const { input, $typeName: _, ...options } = inferRequest(request);
  return joined(patient.stream(input.value as string, session.in(options)));
}

async function joined(stream: Stream): Promise<string> {
  let text = "";
  for await (const part of stream.texts()) text += part;
  return text;
}

async function versions(session: Session): Promise<number> {
  return (await patient.snapshots.list({ sessionId: session.id, allVersions: true })).snapshots.length;
}

const newSession = () => patient.session(`conformance/typescript/${randomUUID()}`);

async function say(session: Session, { request, says }: Scenario, index: number): Promise<string> {
  const { input: _, $typeName: __, ...options } = inferRequest(request);
  return (await patient.infer(says[index]!, session.in(options))).choices[0]!.text;
}

/** Restores a session: it says again what it said first. Then it is forgotten. */
async function goesOn(session: Session, s: Scenario, first: string): Promise<void> {
  const { fidelity } = await session.restore();
  equal(`RESTORE_FIDELITY_${RestoreFidelity[fidelity]}`, s.expect.fidelity);
  equal(await say(session, s, 1), first);
  await session.delete();
}

/** Fills the server with streams that go on until they are released. */
async function holding({ held, hold }: Scenario, work: (release: () => void) => Promise<void>): Promise<void> {
  const controller = new AbortController();
  const release = () => controller.abort();
  try {
    for (let count = 0; count < hold; count++) {
      await streamOf(patient, held, { signal: controller.signal })[Symbol.asyncIterator]().next();
    }
    await work(release);
  } finally {
    release();
  }
}

/** Waits until the server has nothing to do: what was cancelled has ended there too. */
async function idle(): Promise<void> {
  for (const end = Date.now() + 10_000; ; await sleep(5)) {
    const { load } = await hasty.inference.getLoad({});
    if (load!.runningRequests + load!.waitingRequests === 0) return;
    ok(Date.now() < end, "the server is still busy");
  }
}

function checkAnswer(expect: Scenario["expect"], text: string, end?: ChoiceEnd, usage?: Usage): void {
  equal(text, expect.text ?? text);
  const reason = expect.finishReason.replace("FINISH_REASON_", "") as typeof expect.finishReason;
  equal([end?.finishReason, usage?.completionTokens], [FinishReason[reason], expect.completionTokens]);
}

async function fails(call: Promise<unknown>, expect: Failure, prefix = ""): Promise<CallError> {
  const error = await call.then(() => undefined, (error: unknown) => error);
  ok(error instanceof CallError, `not a CallError: ${error}`);
  equal([error.code, error.reason], [status[expect.code], expect.reason ?? error.reason]);
  if (expect.field) ok(prefix + expect.field in error.fieldViolations, JSON.stringify(error.fieldViolations));
  return error;
}

for (const s of JSON.parse(readFileSync(file!, "utf8")) as Scenario[]) {
  const begin = Date.now();
  try {
    ok(kinds[s.kind], `this client has no scenarios of kind ${s.kind}`);
    await kinds[s.kind]!(s);
    if (s.kind !== "rejected") await idle();
    console.log(`ok ${s.name} (${Date.now() - begin} ms)`);
  } catch (error) {
    process.exitCode = 1;
    console.log(`FAILED ${s.name}: ${error}`);
  }
}
patient.close();
hasty.close();
