// Usage: what models and sandboxes took, by agent and by reason, against the budget.

import { call, list, session, versionOf } from "../core/api.js";
import { Form } from "../parts/forms.js";
import { bytes, html, Trouble, usePolled } from "../parts/parts.js";
import { useRef, useState } from "../vendor/hooks.mjs";
import { changedMeanwhile, FIELDS } from "../parts/record_changes.js";

const EVERY = 15_000;
const BUDGET = "accounts/me/budget";

export function View() {
  const { value, problem, refresh } = usePolled(async () => {
    const [usage, storage, budget, agents] = await Promise.all([call("GET", "accounts/me/usage"), call("GET", "accounts/me/storage"), call("GET", BUDGET), list("accounts/me/agents")]);
    return { usage, storage, budget, names: new Map([...Object.entries(usage.deleted_agents ?? {}).map(([id, name]) => [id, `${name} (deleted)`]), ...agents.map(({ id, name }) => [id, name])]) };
  }, EVERY);
  return html`<section class="view">
    <h1>Usage</h1>
    <p class="lead">Since the account began, and against the budgets of today and this month. The operator sets the account's budget.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value && html`<${Budget} usage=${value.usage} storage=${value.storage} />
      <${Periods} budgets=${value.usage.budgets} names=${value.names} />
      <${PersonBudgets} budget=${value.budget} refresh=${refresh} />
      <h2>By agent</h2><${Table} label="Usage by agent" first="Agent" rows=${Object.entries(value.usage.agents).map(([id, amount]) => [value.names.get(id) ?? id, amount])} />
      <h2>By model and reason</h2><${Table} label="Usage by model and reason" first="What" rows=${value.usage.parts.map((part) => [`${part.what || part.kind} for ${part.reason}`, part])} />`}
  </section>`;
}

function Budget({ usage, storage }) {
  const { total, budget } = usage;
  const tokens = total.input_tokens + total.output_tokens;
  const rows = [
    ["Model requests", total.requests, budget.requests, (count) => count.toLocaleString()],
    ["Tokens", tokens, budget.tokens, (count) => count.toLocaleString()],
    ["Cost", total.cost, budget.cost, (amount) => amount.toFixed(2)],
    ["Sandbox minutes", total.sandbox_seconds / 60, budget.seconds / 60, (minutes) => minutes.toFixed(1)],
    ["Storage", storage.used_bytes, storage.limit_bytes, bytes],
  ];
  return html`<div class="tiles">${rows.map(([what, used, limit, shown]) => html`<div class="tile" key=${what}><span class=${`figure ${limit > 0 && used >= limit ? "bad" : ""}`}>${shown(used)}</span>
    <span class="what">${what}${limit > 0 ? ` of ${shown(limit)}` : ""}</span></div>`)}</div>`;
}

const LIMITS = [["requests", "Model requests"], ["tokens", "Tokens"], ["cost", "Cost"]];

/** What each person of the account may use; a field of nothing is no limit. `shown` is what the form began with. */
function PersonBudgets({ budget, refresh }) {
  const shown = useRef(budget);
  const [round, setRound] = useState(0);
  const periods = [["person_day", "per day"], ["person_month", "per month"]];
  const fields = periods.flatMap(([period, words]) => LIMITS.map(([kind, title]) => ({ name: `${period}/${kind}`, pointer: `/${period}/${kind}`, label: `${title} ${words}`, kind: "number", value: shown.current[period][kind] || "" })));
  const save = async (values) => {
    const limits = ([period]) => [period, Object.fromEntries(LIMITS.map(([kind]) => [kind, Number(values[`${period}/${kind}`] || 0)]))];
    shown.current = await call("PUT", BUDGET, { body: Object.fromEntries(periods.map(limits)), match: versionOf(shown.current) }).catch((problem) => {
      if (problem.status !== 412) throw problem;
      const before = shown.current;
      shown.current = problem.current;
      throw changedMeanwhile(problem.current, Object.keys(before).filter((key) => JSON.stringify(before[key]) !== JSON.stringify(problem.current[key])), FIELDS);
    });
    await refresh();
  };
  const reload = async () => {
    shown.current = await call("GET", BUDGET);
    setRound((known) => known + 1);
  };
  return session.may("admin") && html`<details><summary>Budget of each person</summary>
    <p class="quiet">What one person may use in all conversations; nothing means no limit.</p>
    <${Form} label="Budget of each person" fields=${fields} action="Save" onSend=${save} onReload=${reload} keeps=${true} key=${round} /></details>`;
}

function Periods({ budgets, names }) {
  if (budgets.length === 0) return null;
  return html`<h2>Today and this month</h2><div class="scroll" tabIndex="0" role="region" aria-label="Budgets of the day and the month"><table>
    <thead><tr><th scope="col">Budget</th>${["Used", "Reserved", "Limit", "Begins again"].map((name) => html`<th scope="col" class="number" key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${budgets.map((one) => html`<tr key=${`${one.owner} ${one.period} ${one.kind}`}><th scope="row">${one.kind} per ${one.period} of ${one.owner === "" ? "the account" : (names.get(one.owner) ?? one.owner)}</th>
      <td class=${`number ${one.used >= one.limit ? "bad" : ""}`}>${one.used.toLocaleString()}</td><td class="number">${one.reserved.toLocaleString()}</td><td class="number">${one.limit.toLocaleString()}</td>
      <td class="number">${new Date(one.ends_at).toLocaleString()}</td></tr>`)}</tbody></table></div>`;
}

function Table({ label, first, rows }) {
  if (rows.length === 0) return html`<p class="empty">Nothing was used yet.</p>`;
  return html`<div class="scroll" tabIndex="0" role="region" aria-label=${label}><table>
    <thead><tr><th scope="col">${first}</th>${["Requests", "Tokens in", "Tokens out", "Cost", "Sandbox"].map((name) => html`<th scope="col" class="number" key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map(([name, amount]) => html`<tr key=${name}><th scope="row">${name}</th>
      <td class="number">${amount.requests.toLocaleString()}</td><td class="number">${amount.input_tokens.toLocaleString()}</td><td class="number">${amount.output_tokens.toLocaleString()}</td>
      <td class="number">${amount.cost.toFixed(2)}</td><td class="number">${Math.round(amount.sandbox_seconds)} s</td></tr>`)}</tbody></table></div>`;
}
