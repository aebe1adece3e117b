// The packages ai and @ai-sdk/openai: answers, streams, tools, and a chat that reconnects after a kill.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { DefaultChatTransport, generateText, readUIMessageStream, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { version } from "./versions.mjs";

const [url, key] = process.argv.slice(2);
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
const tools = { get_weather: tool({ inputSchema: z.object({ city: z.string() }), execute: async () => "sun" }) };
for (const model of [provider.chat("default"), provider.responses("default")]) {
  assert.equal((await generateText({ model, prompt: "hello" })).text, "echo: hello");
  let text = "";
  for await (const piece of streamText({ model, prompt: "hello" }).textStream) text += piece;
  assert.equal(text, "echo: hello");
  const used = await generateText({ model, prompt: "the weather", tools, stopWhen: stepCountIs(3) });
  assert.match(used.text, /^the tool said: "?sun"?$/);
}
console.log("ok answer\nok stream\nok tools");

const transport = new DefaultChatTransport({ api: `${url}/agents/default/ui`, headers: { Authorization: `Bearer ${key}` } });
const chat = { chatId: `chat-${Date.now()}`, abortSignal: undefined };
const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text: "slow" }] }];
const read = async (stream) => {
  let last;
  for await (const message of readUIMessageStream({ stream })) last = message;
  return (last?.parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("");
};
const stream = await transport.sendMessages({ ...chat, trigger: "submit-message", messages });
console.log("begun");
let answer = await read(stream).catch(() => "");
for (let round = 0; answer !== "echo: slow" && round < 300; round += 1) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  try {
    const again = await transport.reconnectToStream(chat);
    // Nothing runs any more: the same message again streams the same turn.
    answer = await read(again ?? (await transport.sendMessages({ ...chat, trigger: "submit-message", messages })));
  } catch {
    // The gateway is not back yet.
  }
}
assert.equal(answer, "echo: slow");
console.log("ok kill");
console.log("version", version("ai"), "and @ai-sdk/openai", version("@ai-sdk/openai"));
