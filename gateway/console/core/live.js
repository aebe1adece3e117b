// What the views share: the socket, the outbox, the opened threads, and the approvals that wait.

import { call, list, session, socketAddress, word } from "./api.js";
import { addressOf } from "./places.js";
import { Outbox } from "./outbox.js";
import { Socket } from "./socket.js";
import { Thread } from "./thread.js";

const AGAIN_AFTER = 2000;
const ASK_EVERY = 4000;

/** The state that the views share: the socket, the outbox, and the opened threads. */
export class Live {
  constructor(onChange, onRefused) {
    this.onChange = onChange;
    this.threads = new Map();
    this.shown = null;
    this.pending = null;
    this.asking = null;
    this.socket = new Socket({
      address: socketAddress(),
      key: () => session.key(),
      onChange: () => this.connectionChanged(),
      onRefused,
      onAnswer: (frame) => this.answered(frame),
    });
    this.outbox = new Outbox({
      send: (frame) => this.socket.send(frame),
      post: (path, body, repeat) => call("POST", path, { body, repeat }),
      newId: () => word(),
      onAccepted: (letter, before) => this.accepted(letter, before),
      isShown: (conversation, turn) => this.threads.has(conversation) && this.learn(this.thread(conversation).timeline, turn),
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
    if (letter.isNew && before !== letter.conversation) location.hash = addressOf("inbox", letter.conversation);
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

  /** Open the connection, and ask for approvals until `stop`. */
  start() {
    this.socket.start();
    this.asking = setInterval(() => document.hidden || this.askApprovals(), ASK_EVERY);
    this.askApprovals();
  }

  stop() {
    clearInterval(this.asking);
    this.socket.stop();
  }

  /** Read which approvals wait; a gateway that does not answer changes nothing. */
  async askApprovals() {
    const found = await list("approvals?state=pending").catch(() => null);
    if (found === null) return;
    const fresh = this.pending === null ? [] : found.filter(({ id }) => !this.pending.some((known) => known.id === id));
    const isSame = this.pending !== null && fresh.length === 0 && this.pending.length === found.length;
    if (isSame) return;
    this.pending = found;
    fresh.forEach(notify);
    this.onChange();
  }
}

/** Show a notification of the browser, if the person asked for them. */
function notify(approval) {
  if (typeof Notification === "undefined" || Notification.permission !== "granted" || !document.hidden) return;
  const title = approval.kind === "question" ? "An agent asks a question" : "An agent asks for approval";
  const shown = new Notification(title, { body: approval.command.slice(0, 200), tag: approval.id });
  shown.onclick = () => {
    focus();
    location.hash = addressOf("approvals", approval.id);
  };
}
