/** Streams an answer: node dist/examples/stream.js [ADDRESS] [PROMPT] */

import { Client } from "../src/index.js";

const [address = "127.0.0.1:50051", content = "Write a haiku about rain."] = process.argv.slice(2);
const client = new Client(address);
const stream = client.stream([{ role: "user", content }], { stopping: { maxTokens: 64 } });
for await (const text of stream.texts()) process.stdout.write(text);
const { usage, timings } = stream.finished!;
const rate = (usage!.completionTokens / Math.max(timings!.decodeMs, 1e-3)) * 1e3;
console.log(`\n${usage!.promptTokens} + ${usage!.completionTokens} tokens, ${rate.toFixed(1)} tokens/s`);
client.close();
