// The MCP inspector's command line: it lists the tools and calls one.
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
console.log("version", version("@modelcontextprotocol/inspector"));
