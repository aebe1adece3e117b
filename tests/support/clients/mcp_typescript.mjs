// The package @modelcontextprotocol/sdk, an MCP client in TypeScript: tools, a call, and a result after a kill.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const connect = async () => {
  const client = new Client({ name: "story", version: "1" });
  const requestInit = { headers: { Authorization: `Bearer ${key}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit }));
  return client;
};
const call = async (client, name, args) => {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(!result.isError, JSON.stringify(result));
  return result.structuredContent;
};
let client = await connect();
assert.ok((await client.listTools()).tools.some((tool) => tool.name === "ask"));
console.log("ok tools");
assert.equal((await call(client, "ask", { text: "hello", conversation: "ts" })).output, "echo: hello");
console.log("ok answer");
const asked = await call(client, "ask", { text: "slow", conversation: "ts-kill", wait: 0 });
console.log("begun");
let found = {};
for (let round = 0; found.state !== "completed" && round < 300; round += 1) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  try {
    client = await connect();
    found = await call(client, "job_status", { id: asked.turnId });
  } catch {
    // The gateway is not back yet.
  }
}
assert.equal(found.output, "echo: slow");
console.log("ok kill");
console.log("version", version("@modelcontextprotocol/sdk"));
