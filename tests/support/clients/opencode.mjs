// The program opencode: an answer, and a command on its own machine.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { run } from "./programs.mjs";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const options = { baseURL: `${url}/v1`, apiKey: key };
const provider = { npm: "@ai-sdk/openai-compatible", name: "Dovecote", options, models: { default: {} } };
writeFileSync("opencode.json", JSON.stringify({ model: "dovecote/default", provider: { dovecote: provider } }));

assert.match(await run("opencode", ["run", "hello"]), /echo: [^]*hello/);
console.log("ok answer");
assert.match(await run("opencode", ["run", "run a command"]), /the tool said: [^]*a dove/);
assert.equal(readFileSync("ran.txt", "utf8"), "a dove\n");
console.log("ok tools");
console.log("version", version("opencode-ai"));
