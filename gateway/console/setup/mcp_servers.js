// The MCP servers of an agent: what they are, and a form that connects one.

import { call, Problem, session } from "../core/api.js";
import { Form, Remove } from "../parts/forms.js";
import { Badge, html } from "../parts/parts.js";

const KINDS = [["url", "a server with an address (streamable HTTP)"], ["command", "a command in the agent's sandbox (stdio)"]];
const APPROVALS = [["default", "as the sandbox's permissions say"], ["always", "always"], ["never", "never"]];

export function McpServers({ agent, path, refresh }) {
  const servers = Object.entries(agent.config.mcp ?? {});
  const change = async (patch) => {
    await call("PATCH", path, { body: { config: { mcp: patch } } });
    await refresh();
  };
  const connect = ({ name, kind, target, authorization, approval }) => {
    if (servers.some(([known]) => known === name.trim())) throw new Problem({ title: "Nothing was changed", errors: [{ pointer: "/name", detail: "is the name of another server of this agent" }] });
    const secret = kind === "url" && authorization.trim() !== "" && { headers: { Authorization: authorization.trim() } };
    return change({ [name.trim()]: { [kind]: target.trim(), approval, ...secret } });
  };
  const fields = [
    { name: "name", label: "Name", required: true, placeholder: "search", hint: "The names of its tools begin with it." },
    { name: "kind", label: "It is", kind: "select", value: "url", options: KINDS },
    { name: "target", pointer: "/config/mcp", label: "Address or command", required: true, placeholder: "https://mcp.example.org/mcp" },
    { name: "authorization", label: "Authorization header", kind: "password", hint: "Such as Bearer …, if a server with an address needs one." },
    { name: "approval", label: "People are asked before its calls", kind: "select", value: "default", options: APPROVALS },
  ];
  return html`<h2>MCP servers</h2>
    ${servers.length === 0 && html`<p class="empty">None. The tools of an MCP server are tools of the agent.</p>`}
    ${servers.length > 0 && html`<ul class="rows">${servers.map(([name, one]) => html`<li class="entry" key=${name} data-mcp=${name}><header><h3>${name}</h3> <${Badge} state=${one.url ? "HTTP" : "command"} />
      <span class="quiet">${one.tools === null || one.tools === undefined ? "all tools" : one.tools.join(", ")}</span></header>
      <p><code class="wrap">${one.url ?? one.command}</code></p>
      ${!agent.managed && html`<p class="row"><${Remove} label="Disconnect" sureLabel="Confirm" onRemove=${() => change({ [name]: null })} /></p>`}</li>`)}</ul>`}
    ${!agent.managed && session.may("admin") && html`<details><summary>Connect an MCP server</summary><${Form} label="Connect an MCP server" fields=${fields} action="Connect" onSend=${connect} /></details>`}`;
}
