// Skills: instructions that agents load when they need them.

import { call, list, session, upload } from "../core/api.js";
import { Form, Remove } from "../parts/forms.js";
import { html, Trouble, usePolled } from "../parts/parts.js";

const RECORDS = "accounts/me/skills";

export function Skills() {
  const { value, problem, refresh } = usePolled(() => list(RECORDS), 0);
  const add = async ({ name, description, text }) => {
    const made = await call("POST", RECORDS, { body: { name: name.trim(), config: { description: description.trim() } } });
    await upload(`${RECORDS}/${made.id}/files/SKILL.md`, new Blob([text]));
    await refresh();
  };
  const fields = [
    { name: "name", label: "Name", required: true, placeholder: "release" },
    { name: "description", label: "When to use it", required: true, hint: "Agents choose a skill by this sentence." },
    { name: "text", label: "What to do", kind: "area", required: true },
  ];
  return html`<h2>Skills</h2>
    <p class="quiet">Every agent with a workspace can load them.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<p class="empty">None yet.</p>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((one) => html`<li class="entry" key=${one.id} data-skill=${one.name}><header><h3>${one.name}</h3></header>
      <p class="quiet wrap">${one.config.description || "No description: agents see only the name."}</p>
      ${one.managed ? html`<p class="quiet">From the configuration file.</p>` : html`<p class="row"><${Remove} onRemove=${() => call("DELETE", `${RECORDS}/${one.id}`).then(refresh)} /></p>`}</li>`)}</ul>`}
    ${session.may("admin") && html`<details><summary>Add a skill</summary><${Form} label="Add a skill" fields=${fields} action="Add the skill" onSend=${add} /></details>`}`;
}
