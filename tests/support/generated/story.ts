// Talk to a gateway with the types that openapi-typescript made: `node story.js URL KEY`.
import type { components, paths } from "./api";

declare const process: { argv: string[] };
declare function setTimeout(call: () => void, milliseconds: number): void;
declare function fetch(url: string, init: object): Promise<{ status: number; json(): Promise<unknown> }>;
declare const console: { log(text: string): void };

type Json<P extends keyof paths, M extends keyof paths[P], S extends number> = paths[P][M] extends {
  responses: Record<S, { content: { "application/json": infer Answer } }>;
} ? Answer : never;

const [url, key] = process.argv.slice(2);

async function ask<Answer>(method: string, path: string, body?: object): Promise<Answer> {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status}`);
  return (await answer.json()) as Answer;
}

function accountOf(channel: components["schemas"]["Channel"]): string {
  if (channel.kind === "github") return channel.settings.app_id;
  return channel.kind === "pancake" ? channel.settings.page_id : channel.name;
}

async function story(): Promise<void> {
  const config: components["schemas"]["AgentConfig"] = { model: "builtin:shell", instructions: "Coo." };
  const made = await ask<Json<"/accounts/me/agents", "post", 201>>("POST", "/accounts/me/agents", {
    name: "typed-ts",
    config,
  });
  if (made.config.instructions !== "Coo.") throw new Error(JSON.stringify(made));
  const patch: components["schemas"]["AgentUpdate"] = { config: { instructions: "Croo.", sandbox: null } };
  const changed = await ask<Json<"/accounts/me/agents/{id}", "patch", 200>>("PATCH", "/accounts/me/agents/typed-ts", patch);
  if (changed.config.instructions !== "Croo.") throw new Error(JSON.stringify(changed));
  const channels = await ask<Json<"/accounts/me/channels", "get", 200>>("GET", "/accounts/me/channels");
  if (channels.items.map(accountOf).length !== 0) throw new Error(JSON.stringify(channels));
  const input: components["schemas"]["TurnCreate"] = { input: "!echo coo" };
  const turn = await ask<Json<"/agents/{id}/turns", "post", 202>>("POST", "/agents/default/turns", input);
  for (let tries = 0; tries < 600; tries += 1) {
    const status = await ask<Json<"/status/{id}", "get", 200>>("GET", `/status/${turn.turnId}`);
    if (status.state === "completed") {
      console.log("the story is over");
      return;
    }
    await new Promise<void>((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("the turn did not end");
}

void story();
