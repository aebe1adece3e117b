// The navigation: all places in groups, the number of approvals that wait, and what belongs to the page itself.

import { session } from "../core/api.js";
import { chooseTheme, theme, THEMES } from "../core/choices.js";
import { PLACES } from "../core/places.js";
import { Icon, Mark } from "../parts/icons.js";
import { html } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";
import { Connection } from "./connection.js";

const GROUPS = [undefined, "Activity", "Set up"];

export function Navigation({ place, address, live, onLeave }) {
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [address]);
  const closeOnEscape = (event) => event.key === "Escape" && setOpen(false);
  return html`<header class=${`side ${open ? "open" : ""}`} onKeyDown=${closeOnEscape}>
    <div class="bar">
      <a class="brand" href="#/home"><${Mark} /> Dovecote</a>
      <${Connection} live=${live} key=${live.shown?.conversation ?? ""} />
      <button type="button" class="menu" aria-expanded=${open} aria-controls="places" onClick=${() => setOpen(!open)}>
        <${Icon} name="menu" /> Menu${live.pending?.length > 0 && html` <span class="count">${live.pending.length}</span>`}</button>
    </div>
    <div class="places" id="places">
      ${session.may("chat") && html`<a class="button primary new" href="#/inbox/new"><${Icon} name="plus" /> New conversation</a>`}
      <nav aria-label="Views">${GROUPS.map((group) => html`<${Group} group=${group} place=${place} live=${live} key=${group} />`)}</nav>
      <div class="own">
        <${ThemeChoice} />
        <button type="button" class="leave" onClick=${onLeave}>Leave</button>
      </div>
    </div>
  </header>`;
}

function Group({ group, place, live }) {
  const members = PLACES.filter((candidate) => candidate.group === group);
  return html`${group && html`<p class="group">${group}</p>`}
    <ul>${members.map(({ name, title, icon }) => html`<li key=${name}>
      <a href=${`#/${name}`} aria-current=${name === place.name ? "page" : undefined}><${Icon} name=${icon} /> ${title}${" "}
        ${name === "approvals" && live.pending?.length > 0 && html`<${Count} count=${live.pending.length} />`}</a></li>`)}</ul>`;
}

function Count({ count }) {
  return html`<span class="count" data-count=${count}>${count}<span class="unseen"> waiting</span></span>`;
}

function ThemeChoice() {
  const [chosen, setChosen] = useState(theme());
  const choose = (event) => {
    chooseTheme(event.target.value);
    setChosen(event.target.value);
  };
  return html`<label class="theme"><span class="unseen">Theme</span>
    <select value=${chosen} onChange=${choose}>${THEMES.map((name) => html`<option value=${name} key=${name}>${THEME_WORDS[name]}</option>`)}</select></label>`;
}

const THEME_WORDS = { system: "System", light: "Light", dark: "Dark" };
