// The shell: asks for the key, keeps the connection open, and shows the view in the address.

import { askOtherTabs, call, endSession, onRefused, Problem, session, shareSession, socketAddress, word } from "./api.js";
import { Chat } from "./chat.js";
import { Deliveries } from "./deliveries.js";
import { Health } from "./health.js";
import { Jobs } from "./jobs.js";
import { Outbox } from "./outbox.js";
import { html, useThread } from "./parts.js";
import { Socket } from "./socket.js";
import { Streams } from "./streams.js";
import { Thread } from "./thread.js";
import { useEffect, useMemo, useReducer, useState } from "./vendor/hooks.mjs";
import { render } from "./vendor/preact.mjs";
import { Webhooks } from "./webhooks.js";

const AGAIN_AFTER = 2000;

const VIEWS = [
  { name: "chat", title: "Chat", view: Chat },
  { name: "jobs", title: "Jobs", view: Jobs },
  { name: "deliveries", title: "Deliveries", view: Deliveries },
  { name: "streams", title: "Streams", view: Streams },
  { name: "webhooks", title: "Webhooks", view: Webhooks },
  { name: "health", title: "Health", view: Health },
];

/** The state that the views share: the socket, the outbox, and the opened threads. */
class Desk {
  constructor(onChange) {
    this.onChange = onChange;
    this.threads = new Map();
    this.shown = null;
    this.socket = new Socket({
      address: socketAddress(),
      key: () => session.key(),
      onChange: () => this.connectionChanged(),
      onRefused: () => leave("The key is no longer accepted."),
      onAnswer: (frame) => this.answered(frame),
    });
    this.outbox = new Outbox({
      send: (frame) => this.socket.send(frame),
      post: (path, body, repeat) => call("POST", path, { body, repeat }),
      newId: () => word(),
      onAccepted: (letter, before) => this.accepted(letter, before),
      onChange,
    });
  }

  connectionChanged() {
    if (this.socket.state === "connected") this.outbox.flush();
    this.onChange();
  }

  /** Handle a response; a message that the gateway could not store is sent again later. */
  answered(frame) {
    if (frame.code !== "unavailable" || frame.id !== undefined) return this.outbox.answered(frame);
    setTimeout(() => this.outbox.flush(), AGAIN_AFTER);
    return true;
  }

  accepted(letter, before) {
    if (letter.isNew && before !== letter.conversation) location.hash = `#/chat/${letter.conversation}`;
  }

  thread(conversation) {
    if (!this.threads.has(conversation)) {
      const fetchSnapshot = (id) => call("GET", `conversations/${encodeURIComponent(id)}/snapshot`);
      const thread = new Thread(conversation, fetchSnapshot);
      thread.listen(() => this.outbox.arrived((turn) => this.learn(thread.timeline, turn)));
      this.threads.set(conversation, thread);
    }
    return this.threads.get(conversation);
  }

  /** Whether the stream contains a turn of ours, which also shows the id of our key. */
  learn(timeline, turn) {
    if (timeline.authors.get(turn)) session.isKnownAs(timeline.authors.get(turn));
    return timeline.turns.has(turn);
  }

  /** Follow a thread while it is shown; returns the function that stops it. */
  follow(thread) {
    this.shown = thread;
    this.socket.watch(thread);
    this.onChange();
    return () => {
      this.shown = this.shown === thread ? null : this.shown;
      this.socket.leave(thread);
      this.onChange();
    };
  }

  /** Discard a thread's state and read it again. */
  reread(thread) {
    this.socket.leave(thread);
    thread.forget();
    this.socket.watch(thread);
  }
}

let leave = () => {};

function Console() {
  const [key, setKey] = useState(session.key());
  const [said, setSaid] = useState("");
  leave = (reason) => {
    session.forget();
    setSaid(reason);
    setKey(null);
  };
  onRefused(() => leave("The key is no longer accepted."));
  const enter = (accepted) => {
    session.keep(accepted);
    setSaid("");
    setKey(accepted);
  };
  useEffect(() => {
    shareSession(() => leave("You left the console in another tab."));
    askOtherTabs().then(async (shared) => shared !== null && session.key() === null && (await tryKey(shared)) === null && enter(shared));
  }, []);
  return key === null ? html`<${KeyForm} said=${said} onEnter=${enter} />` : html`<${Shell} key=${key} />`;
}

function KeyForm({ said, onEnter }) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState(said);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    const refusal = await tryKey(key.trim());
    setBusy(false);
    if (refusal) setProblem(refusal);
    else onEnter(key.trim());
  };
  return html`<main class="gate"><form class="stack" onSubmit=${submit} autoComplete="off">
    <h1>Dovecote</h1>
    <label>API key <input type="password" name="key" required autoFocus autoComplete="off" spellCheck=${false} value=${key}
      aria-describedby="key-hint" onInput=${(event) => setKey(event.target.value)} /></label>
    <p id="key-hint" class="quiet">The gateway wrote its first key to the file <code>key</code> in its data directory. This page keeps it until you leave or close its tabs.</p>
    <p class="row"><button class="primary" disabled=${busy || key.trim() === ""}>Enter</button></p>
    ${problem && html`<p class="trouble" role="alert">${problem}</p>`}
  </form></main>`;
}

/** Why a key is refused, or null if it is accepted; stores the id under which its messages are shown. */
async function tryKey(key) {
  try {
    const account = await call("GET", "accounts/me", { key });
    session.isKnownAs(account.key);
    return null;
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status === 401) return "The gateway refused this key.";
    return problem.status === 403 ? null : problem.message;
  }
}

/** The view and id in the address. */
function place() {
  const [name, id] = location.hash.replace(/^#\//, "").split("/").map(decodePart);
  const view = VIEWS.find((candidate) => candidate.name === name) ?? VIEWS[0];
  return { view, id: id || null };
}

function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

function Shell() {
  const [, draw] = useReducer((count) => count + 1, 0);
  const shared = useMemo(() => new Desk(() => draw()), []);
  useEffect(() => {
    const hurry = () => document.hidden || shared.socket.hurry();
    addEventListener("hashchange", draw);
    addEventListener("online", hurry);
    document.addEventListener("visibilitychange", hurry);
    shared.socket.start();
    return () => {
      removeEventListener("hashchange", draw);
      removeEventListener("online", hurry);
      document.removeEventListener("visibilitychange", hurry);
      shared.socket.stop();
    };
  }, [shared]);
  const { view, id } = place();
  useEffect(() => {
    document.title = `${view.title} · Dovecote`;
  }, [view]);
  return html`<header class="top">
      <a class="brand" href="#/chat">Dovecote</a>
      <nav aria-label="Views"><ul>${VIEWS.map(({ name, title }) => html`<li key=${name}>
        <a href=${`#/${name}`} aria-current=${name === view.name ? "page" : undefined}>${title}</a></li>`)}</ul></nav>
      <${Connection} shared=${shared} key=${shared.shown?.conversation ?? ""} />
      <button type="button" class="leave" onClick=${() => { endSession(); leave(""); }}>Leave</button>
    </header>
    <main><${view.view} id=${id} shared=${shared} key=${view.name} /></main>`;
}

const IDLE = { listen: () => () => {}, version: 0 };

/** The state of the connection; "caught up" only after the gateway sent `caught_up`. */
function Connection({ shared }) {
  useThread(shared.shown ?? IDLE);
  const { state, retryAt } = shared.socket;
  const [tone, words] = connectionWords(state, shared.shown?.place);
  return html`<p class=${`connection ${tone}`}>
    <span role="status" data-connection=${words}>${words}</span>
    ${state === "waiting" && html`<${Countdown} until=${retryAt} /> <button type="button" onClick=${() => shared.socket.hurry()}>Now</button>`}
  </p>`;
}

function connectionWords(state, place) {
  if (state === "connecting") return ["busy", "Connecting"];
  if (state === "waiting") return ["bad", "Reconnecting"];
  if (state === "stopped") return ["bad", "Not connected"];
  if (!place) return ["ok", "Connected"];
  return place.caughtUp ? ["ok", "Caught up"] : ["busy", "Catching up"];
}

function Countdown({ until }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.ceil((until - now) / 1000);
  return seconds > 0 ? html`<span class="quiet">in ${seconds} s</span>` : null;
}

render(html`<${Console} />`, document.getElementById("page"));
