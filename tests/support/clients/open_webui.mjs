// The requests that Open WebUI sends to an OpenAI connection: models, a streamed answer, a title, and an answer
// that a person asks for once more after the connection broke (Regenerate).
import assert from "node:assert/strict";

const [url, key] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
const post = (body) => fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify({ model: "default", ...body }) });
const models = await (await fetch(`${url}/v1/models`, { headers })).json();
assert.ok(models.data.some((model) => model.id === "default"));
const said = { messages: [{ role: "user", content: "hello" }] };
assert.equal((await (await post({ ...said, stream: false })).json()).choices[0].message.content, "echo: hello");
console.log("ok answer");
const stream = (messages) => post({ messages, stream: true, stream_options: { include_usage: true } });
const chunksOf = (text) => text.split("\n").filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join("");
const streamed = await (await stream(said.messages)).text();
const chunks = chunksOf(streamed);
assert.equal(textOf(chunks), "echo: hello");
assert.ok(chunks.at(-1).usage);
assert.ok(streamed.trimEnd().endsWith("data: [DONE]"));
console.log("ok stream");
const task = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n";
const titled = await (await post({ messages: [{ role: "user", content: task }], stream: false, max_completion_tokens: 1000 })).json();
assert.ok(titled.choices[0].message.content);
console.log("ok title");
const slow = [{ role: "user", content: "slow" }];
const broken = await stream(slow);
console.log("begun");
await assert.rejects(broken.text());
let answer = "";
for (let round = 0; answer !== "echo: slow" && round < 300; round += 1) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  answer = await stream(slow).then(async (again) => textOf(chunksOf(await again.text()))).catch(() => "");
}
assert.equal(answer, "echo: slow");
console.log("ok kill");
console.log("version", "requests as of Open WebUI 0.6");
