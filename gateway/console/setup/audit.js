// Audit: every change of the set-up, newest first.

import { html, Moment, Trouble, useGrowing } from "../parts/parts.js";

export function View() {
  const { items, more, busy, problem, refresh } = useGrowing("accounts/me/audit", 0);
  return html`<section class="view">
    <h1>Audit</h1>
    <p class="lead">Who changed what, and from where.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${items?.length === 0 && html`<p class="empty">Nothing was changed yet.</p>`}
    ${items?.length > 0 && html`<div class="scroll" tabIndex="0" role="region" aria-label="Audit entries"><table>
      <thead><tr>${["Time", "Who", "What", "Object", "Status", "From"].map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${items.map((entry) => html`<tr key=${entry.id}><td><${Moment} time=${entry.time} /></td><td><code>${entry.actor}</code></td><td>${entry.action}</td><td><code>${entry.object}</code></td><td>${entry.status}</td><td>${entry.address}</td></tr>`)}</tbody></table></div>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
  </section>`;
}
