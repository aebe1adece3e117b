// The package @ag-ui/client: a run, its events, a tool of the client, and the same run again after a kill.
import assert from "node:assert/strict";
import { HttpAgent } from "@ag-ui/client";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const open = (threadId) => new HttpAgent({ url: `${url}/agui`, headers: { Authorization: `Bearer ${key}` }, threadId });
const say = (id, content) => ({ id, role: "user", content });
const last = (agent) => agent.messages.filter((message) => message.role === "assistant").at(-1);
const now = Date.now();

let agent = open(`agui-${now}`);
agent.addMessage(say("u1", "hello"));
let pieces = "";
await agent.runAgent({ runId: `r1-${now}` }, { onTextMessageContentEvent: ({ event }) => { pieces += event.delta; } });
assert.equal(last(agent).content, "echo: hello");
console.log("ok answer");
assert.equal(pieces, "echo: hello");
console.log("ok stream");
const tools = [{ name: "get_weather", description: "", parameters: { type: "object", properties: { city: { type: "string" } } } }];
agent = open(`agui-tools-${now}`);
agent.addMessage(say("u2", "the weather"));
await agent.runAgent({ runId: `r2-${now}`, tools });
const [call] = last(agent).toolCalls;
agent.addMessage({ id: "t1", role: "tool", toolCallId: call.id, content: "sun" });
await agent.runAgent({ runId: `r3-${now}`, tools });
assert.equal(last(agent).content, "the tool said: sun");
console.log("ok tools");
// When a stream breaks, @ag-ui/client 1.0.0 also rejects a promise that nobody can await.
process.on("unhandledRejection", () => {});
console.log("begun");
for (let round = 0; round < 300; round += 1) {
  agent = open(`agui-kill-${now}`);
  agent.addMessage(say("u3", "slow"));
  try {
    await agent.runAgent({ runId: `r4-${now}` });
    if (last(agent)?.content === "echo: slow") break;
  } catch {
    // The connection broke, or the gateway is not back yet.
  }
  await new Promise((resolve) => setTimeout(resolve, 200));
}
assert.equal(last(agent)?.content, "echo: slow");
console.log("ok kill");
console.log("version", version("@ag-ui/client"));
