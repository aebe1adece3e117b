// What to do first, as long as something of it is left to do.

import { session } from "../core/api.js";
import { html } from "../parts/parts.js";

export function FirstSteps({ set, hasTurns }) {
  const hasModel = set.agents.some(({ config }) => config?.model && config.model !== "builtin:shell");
  const steps = [
    { done: hasTurns, needs: "chat", what: "Say something to the agent", href: "#/inbox/new", label: "New conversation" },
    { done: hasModel, needs: "admin", what: "Choose a model; the built-in shell agent only runs commands", href: "#/agents", label: "Agents" },
    { done: set.channels.length > 0, needs: "admin", what: "Connect a channel, so that people can write from their chat", href: "#/channels", label: "Channels" },
  ].filter(({ needs }) => session.may(needs));
  if (steps.every(({ done }) => done)) return null;
  return html`<h2>First steps</h2><ol class="first">${steps.map(({ done, what, href, label }) => html`<li key=${href} class=${done ? "done" : ""}>
    <span>${what}${done && html`<span class="unseen"> (done)</span>`}</span> ${!done && html`<a class="button end" href=${href}>${label}</a>`}</li>`)}</ol>`;
}
