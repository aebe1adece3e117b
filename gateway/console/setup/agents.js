// Agents: the model, the instructions, the tools and what they may do, and a conversation to try them.

import { call, list } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Form, Remove } from "../parts/forms.js";
import { Empty, html, Trouble, usePolled } from "../parts/parts.js";
import { McpServers } from "./mcp_servers.js";
import { useRecordChanges } from "../parts/record_changes.js";
import { Skills } from "./skills.js";

const RECORDS = "accounts/me/agents";
const PERMISSIONS = [["ask", "Ask before commands and changes of files"], ["edit", "Ask before commands only"], ["bypass", "Run without asking"]];

export function View({ id }) {
  return id ? html`<${OneAgent} id=${id} key=${id} />` : html`<${AllAgents} />`;
}

function AllAgents() {
  const { value, problem, refresh } = usePolled(() => list(RECORDS), 0);
  const create = async ({ name, model, instructions }) => {
    const made = await call("POST", RECORDS, { body: { name: name.trim(), config: { model: model.trim(), instructions } } });
    location.hash = addressOf("agents", made.id);
  };
  const fields = [
    { name: "name", label: "Name", required: true },
    { name: "model", label: "Model", required: true, placeholder: "openai:gpt-5", hint: "Such as openai:NAME, anthropic:NAME, google:NAME or ollama:NAME." },
    { name: "instructions", label: "Instructions", kind: "area" },
  ];
  return html`<section class="view narrow">
    <h1>Agents</h1>
    <p class="lead">An agent answers messages with a model, tools and a workspace.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<${Empty} icon="agent" title="No agent yet">Messages need one that answers: add it below.</${Empty}>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((agent) => html`<li class="entry" key=${agent.id}><header><h2><a href=${addressOf("agents", agent.id)}>${agent.name}</a></h2>
      <code>${agent.config.model}</code> <a class="button small end" href=${addressOf("inbox", "new", { agent: agent.name })} aria-label=${`Try ${agent.name}`}>Try</a></header></li>`)}</ul>`}
    <${Form} title="Add an agent" fields=${fields} action="Add" onSend=${create} />
    <${Skills} />
  </section>`;
}

function OneAgent({ id }) {
  const { value, problem, refresh } = usePolled(async () => {
    const [agent, sandboxes] = await Promise.all([call("GET", `${RECORDS}/${id}`), list("accounts/me/sandboxes")]);
    return { agent, sandboxes };
  }, 0, [id]);
  if (value === null) return html`<section class="view narrow"><p><a href="#/agents">← All agents</a></p><${Trouble} problem=${problem} retry=${refresh} /></section>`;
  const { agent, sandboxes } = value;
  const sandbox = sandboxes.find((one) => one.id === agent.config.sandbox || one.name === agent.config.sandbox);
  return html`<section class="view narrow">
    <p><a href="#/agents">← All agents</a></p>
    <h1>${agent.name}</h1>
    <p class="row"><a class="button primary" href=${addressOf("inbox", "new", { agent: agent.name })}>Try</a></p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${agent.managed && html`<p class="quiet">This agent comes from the configuration file; change it there.</p>`}
    ${!agent.managed && html`<${Settings} agent=${agent} sandboxes=${sandboxes} refresh=${refresh} />`}
    ${sandbox && html`<${Permissions} sandbox=${sandbox} refresh=${refresh} key=${sandbox.id} />`}
    <${McpServers} agent=${agent} path=${`${RECORDS}/${id}`} refresh=${refresh} />
    <h2>Workspaces</h2>
    ${agent.config.workspaces.length === 0 && html`<p class="empty">None: the agent has no files.</p>`}
    ${agent.config.workspaces.length > 0 && html`<ul class="rows">${agent.config.workspaces.map((one) => html`<li class="entry" key=${one.workspaceId}><a href=${addressOf("workspaces", one.workspaceId)}>${one.name}</a> ${one.readOnly && html`<span class="quiet">read only</span>`}</li>`)}</ul>`}
    ${!agent.managed && html`<h2>Remove</h2><p class="row"><${Remove} onRemove=${() => removeAgent(id)} /></p>`}
  </section>`;
}

async function removeAgent(id) {
  await call("DELETE", `${RECORDS}/${id}`);
  location.hash = "#/agents";
}

/** The names of the offered tools: `tools` is an array of them, or an object that has them beside others. */
function toolNames({ tools }) {
  return (Array.isArray(tools) ? tools : tools?.names) ?? [];
}

function withToolNames({ tools }, names) {
  const offered = names.length > 0 ? names : null;
  return Array.isArray(tools) || (tools ?? null) === null ? offered : { ...tools, names: offered };
}

function Settings({ agent, sandboxes, refresh }) {
  const { save: change, reload, round } = useRecordChanges(`${RECORDS}/${agent.id}`, agent, refresh);
  const { config } = agent;
  const save = async (_values, { model, instructions, tools, sandbox }) => {
    const wanted = {
      ...(model !== undefined && { model: model.trim() }),
      ...(instructions !== undefined && { instructions }),
      ...(tools !== undefined && { tools: withToolNames(config, tools.split(/[\s,]+/).filter(Boolean)) }),
      ...(sandbox !== undefined && { sandbox: sandbox || null }),
    };
    await change(wanted);
  };
  const fields = [
    { name: "model", label: "Model", required: true, value: config.model },
    { name: "instructions", label: "Instructions", kind: "area", value: config.instructions },
    { name: "tools", label: "Tools", value: toolNames(config).join(" "), hint: "Names separated by spaces, such as read grep bash; empty allows all." },
    { name: "sandbox", label: "Sandbox", kind: "select", value: config.sandbox ?? "", options: [["", "none"], ...sandboxes.map((one) => [one.id, one.name])] },
  ];
  return html`<${Form} title="Settings" fields=${fields} action="Save" onSend=${save} onReload=${reload} keeps=${true} key=${round} />`;
}

/** What the tools may do is a setting of the sandbox in which they run. */
function Permissions({ sandbox, refresh }) {
  const { save, reload, round } = useRecordChanges(`accounts/me/sandboxes/${sandbox.id}`, sandbox, refresh);
  if (sandbox.managed) return html`<h2>Permissions</h2><p class="quiet">The sandbox ${sandbox.name} comes from the configuration file; change it there.</p>`;
  const fields = [{ name: "mode", pointer: "/config/permissionMode", label: `Commands and changes in the sandbox ${sandbox.name}`, kind: "select", value: sandbox.config.permissionMode, options: PERMISSIONS }];
  return html`<${Form} title="Permissions" fields=${fields} action="Save permissions" onSend=${({ mode }) => save({ permissionMode: mode })} onReload=${reload} keeps=${true} key=${round} />`;
}
