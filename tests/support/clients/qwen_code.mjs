// The program qwen: an answer, and a command on its own machine.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { run } from "./programs.mjs";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const env = { OPENAI_API_KEY: key, OPENAI_BASE_URL: `${url}/v1`, OPENAI_MODEL: "default" };
const ask = (text) => run("qwen", ["--auth-type", "openai", "-y", "-p", text], env);

assert.match(await ask("hello"), /echo: [^]*hello/);
console.log("ok answer");
assert.match(await ask("run a command"), /the tool said: [^]*a dove/);
assert.equal(readFileSync("ran.txt", "utf8"), "a dove\n");
console.log("ok tools");
console.log("version", version("@qwen-code/qwen-code"));
