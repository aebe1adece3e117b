// The MCP inspector's command line: it lists the tools, calls one, and has a result after a kill.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const program = fileURLToPath(new URL("./node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", import.meta.url));
const inspect = (...args) =>
  JSON.parse(execFileSync(process.execPath, [program, "--cli", `${url}/mcp`, "--transport", "http", "--header", `Authorization: Bearer ${key}`, ...args], { encoding: "utf8" }));
assert.ok(inspect("--method", "tools/list").tools.some((tool) => tool.name === "ask"));
console.log("ok tools");
const called = inspect("--method", "tools/call", "--tool-name", "ask", "--tool-arg", "text=hello", "conversation=inspector");
assert.equal(called.structuredContent.output, "echo: hello");
console.log("ok answer");
const asked = inspect("--method", "tools/call", "--tool-name", "ask", "--tool-arg", "text=slow", "conversation=inspector-kill", "wait=0");
console.log("begun");
let found = {};
for (let round = 0; found.state !== "completed" && round < 60; round += 1) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  try {
    const shown = inspect("--method", "tools/call", "--tool-name", "job_status", "--tool-arg", `id=${asked.structuredContent.turnId}`);
    found = shown.structuredContent ?? {};
  } catch {
    // The gateway is not back yet.
  }
}
assert.equal(found.output, "echo: slow");
console.log("ok kill");
console.log("version", version("@modelcontextprotocol/inspector"));
