// The package openai: completions, streams, tools, and a background response over a kill.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 20 });
const say = (content) => [{ role: "user", content }];
const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const complete = (messages, more = {}) => client.chat.completions.create({ model: "default", messages, ...more });

assert.equal((await complete(say("hello"))).choices[0].message.content, "echo: hello");
assert.equal((await client.responses.create({ model: "default", input: "hello" })).output_text, "echo: hello");
console.log("ok answer");
let text = "";
for await (const chunk of await complete(say("hello"), { stream: true })) text += chunk.choices[0]?.delta?.content ?? "";
assert.equal(text, "echo: hello");
console.log("ok stream");
const asked = (await complete(say("the weather"), { tools })).choices[0].message;
const result = { role: "tool", tool_call_id: asked.tool_calls[0].id, content: "sun" };
assert.equal((await complete([...say("the weather"), asked, result], { tools })).choices[0].message.content, "the tool said: sun");
console.log("ok tools");
let response = await client.responses.create({ model: "default", input: "slow", background: true });
console.log("begun");
while (!["completed", "failed", "cancelled"].includes(response.status)) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  response = await client.responses.retrieve(response.id);
}
assert.equal(response.output_text, "echo: slow");
console.log("ok kill");
console.log("version", version("openai"));
