// The filters of the inbox: what a conversation waits for, its platform and its agent.

import { list } from "../core/api.js";
import { html, usePolled } from "../parts/parts.js";

const STATES = { "": "Any state", waiting: "Waiting", running: "Running", failed: "Failed", human: "With a person" };

export function Filters({ wanted, choose }) {
  const { value } = usePolled(async () => {
    const [channels, agents] = await Promise.all([list("accounts/me/channels"), list("accounts/me/agents")]);
    return { kinds: [...new Set(channels.map(({ kind }) => kind))].sort(), agents: agents.map(({ name }) => name) };
  }, 0);
  const { kinds = [], agents = [] } = value ?? {};
  return html`<div class="filters">
    <${Choice} label="State" value=${wanted.state} options=${Object.entries(STATES)} onChoose=${(state) => choose({ state })} />
    ${kinds.length > 0 && html`<${Choice} label="Platform" value=${wanted.kind} options=${[["", "Any platform"], ...kinds.map((kind) => [kind, kind])]} onChoose=${(kind) => choose({ kind })} />`}
    ${agents.length > 1 && html`<${Choice} label="Agent" value=${wanted.agent} options=${[["", "Any agent"], ...agents.map((name) => [name, name])]} onChoose=${(agent) => choose({ agent })} />`}
  </div>`;
}

function Choice({ label, value, options, onChoose }) {
  return html`<label><span class="unseen">${label}</span>
    <select value=${value} onChange=${(event) => onChoose(event.target.value)}>${options.map(([name, title]) => html`<option value=${name} key=${name}>${title}</option>`)}</select></label>`;
}
