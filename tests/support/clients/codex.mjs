// The program codex: an answer, a command on its own machine, and an answer over a kill.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { run } from "./programs.mjs";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
mkdirSync("codex", { recursive: true });
writeFileSync("codex/config.toml", `
model = "default"
model_provider = "dovecote"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.dovecote]
name = "Dovecote"
base_url = "${url}/v1"
env_key = "DOVECOTE_KEY"
wire_api = "responses"
`);
const env = { CODEX_HOME: `${process.cwd()}/codex`, DOVECOTE_KEY: key };
const ask = (text) => run("codex", ["exec", "--skip-git-repo-check", text], env);

assert.match(await ask("hello"), /echo: [^]*hello/);
console.log("ok answer");
assert.match(await ask("run a command"), /the tool said: [^]*a dove/);
assert.equal(readFileSync("ran.txt", "utf8"), "a dove\n");
console.log("ok tools");
console.log("begun");
assert.match(await ask("slow"), /echo: [^]*slow/);
console.log("ok kill");
console.log("version", version("@openai/codex"));
