// The places of the console: what the address names, and the module that shows it.

import { importModule } from "./modules.js";

const fetched = (path) => () => importModule(new URL(path, import.meta.url).href);

/** Modules of places are fetched when they are opened. */
export const PLACES = [
  { name: "home", title: "Home", icon: "home", load: fetched("../home/home.js") },
  { name: "inbox", title: "Inbox", icon: "inbox", load: fetched("../inbox/inbox.js") },
  { name: "approvals", title: "Approvals", icon: "check", needs: "chat", load: fetched("../decisions/approvals.js") },
  { name: "jobs", title: "Jobs", icon: "job", group: "Activity", load: fetched("../work/jobs.js") },
  { name: "turns", title: "Turns", icon: "turn", group: "Activity", load: fetched("../work/turns.js") },
  { name: "deliveries", title: "Deliveries", icon: "send", group: "Activity", load: fetched("../work/deliveries.js") },
  { name: "streams", title: "Streams", icon: "stream", group: "Activity", load: fetched("../work/streams.js") },
  { name: "health", title: "Health", icon: "health", group: "Activity", load: fetched("../work/health.js") },
  { name: "channels", title: "Channels", icon: "channel", group: "Set up", needs: "admin", load: fetched("../setup/channels.js") },
  { name: "agents", title: "Agents", icon: "agent", group: "Set up", needs: "admin", load: fetched("../setup/agents.js") },
  { name: "sandboxes", title: "Sandboxes", icon: "box", group: "Set up", needs: "admin", load: fetched("../setup/sandboxes.js") },
  { name: "workspaces", title: "Workspaces", icon: "folder", group: "Set up", needs: "admin", load: fetched("../setup/workspaces.js") },
  { name: "schedules", title: "Schedules", icon: "clock", group: "Set up", needs: "chat", load: fetched("../setup/schedules.js") },
  { name: "memory", title: "Memory", icon: "memory", group: "Set up", needs: "chat", load: fetched("../setup/memory.js") },
  { name: "webhooks", title: "Webhooks", icon: "hook", group: "Set up", needs: "admin", load: fetched("../setup/webhooks.js") },
  { name: "keys", title: "Keys", icon: "key", group: "Set up", needs: "admin", load: fetched("../setup/keys.js") },
  { name: "usage", title: "Usage", icon: "chart", group: "Set up", needs: "admin", load: fetched("../setup/usage.js") },
  { name: "audit", title: "Audit", icon: "list", group: "Set up", load: fetched("../setup/audit.js") },
];

const FORMER_NAMES = { chat: "inbox" };

/** The place in an address such as `#/inbox/cnv_1?q=report`: {place, id, rest, query}. */
export function placeIn(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name, id, ...rest] = path.split("/").map(decodePart);
  const wanted = FORMER_NAMES[name] ?? name;
  const place = PLACES.find((candidate) => candidate.name === wanted) ?? PLACES[0];
  return { place, id: id || null, rest, query: new URLSearchParams(search) };
}

/** The address of a place; empty values of `query` are left out. */
export function addressOf(name, id, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  const search = given.length > 0 ? `?${new URLSearchParams(given)}` : "";
  return `#/${name}${id ? `/${id}` : ""}${search}`;
}

/** Go to an address without a new entry in the history. */
export function replaceAddress(hash) {
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}
