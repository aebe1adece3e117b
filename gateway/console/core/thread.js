// The state of one conversation in this tab: its position in the stream, its timeline and its outbox.

import { admit, caughtUp, continuation, cut, nowhere, reset, skipped, subscribed } from "./splice.js";
import { Timeline } from "./timeline.js";

/** Follows one conversation. `fetchSnapshot(conversation)` loads what the stream no longer has. */
export class Thread {
  constructor(conversation, fetchSnapshot) {
    this.conversation = conversation;
    this.fetchSnapshot = fetchSnapshot;
    this.place = nowhere();
    this.timeline = new Timeline();
    this.notice = "";
    this.problem = "";
    this.isRefused = false;
    this.listeners = new Set();
    this.version = 0;
    this.filling = null;
    this.held = [];
  }

  /** Call `listener` after every change; returns the function that stops it. */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** The frame that subscribes from this thread's position. */
  continuation() {
    return continuation(this.place, this.conversation);
  }

  /** Handle a frame of the socket: an event, a batch, or a control frame of the stream. */
  take(frame) {
    if (this.filling !== null) this.held.push(frame);
    else this.read(frame);
    this.changed();
  }

  read(frame) {
    if (frame.type === "events") frame.items.forEach((event) => this.readOne(event));
    else this.readOne(frame);
  }

  readOne(frame) {
    const control = CONTROLS[frame.type];
    if (control) control(this, frame);
    else if (typeof frame.seq === "number") this.admit(frame);
  }

  admit(event) {
    const first = this.place.n === null && this.place.seq === null;
    const { place, fresh } = admit(this.place, event);
    this.place = place;
    if (!fresh) return;
    this.timeline.apply(event);
    if (first && event.n > 1) this.fill("Tool calls from long ago are not kept; the messages are.");
  }

  /** The gateway refused the subscription. */
  refuse(frame) {
    this.problem = frame.detail || frame.code;
    this.isRefused = true;
    this.changed();
  }

  /** Reset the thread and read it again. */
  forget() {
    this.place = nowhere();
    this.timeline = new Timeline();
    this.notice = "";
    this.changed();
  }

  /** The connection was lost. */
  cut() {
    this.place = cut(this.place);
    this.changed();
  }

  /** Fetch the snapshot; frames that arrive before it wait, so that the order is right. */
  fill(notice) {
    if (this.filling !== null) return;
    this.notice = notice;
    this.filling = this.fetchSnapshot(this.conversation)
      .then((snapshot) => {
        this.restore(snapshot);
        this.problem = "";
      })
      .catch((error) => {
        this.problem = `Older messages could not be fetched. ${error.message}`;
      })
      .finally(() => {
        this.filling = null;
        this.release();
      });
  }

  /** Insert a snapshot's messages before the first event that this thread has not seen in order. */
  restore(snapshot) {
    const seen = this.timeline.items;
    this.timeline.items = new Map();
    const oldest = [...seen.values()].find((item) => item.time)?.time ?? null;
    const known = new Set(seen.keys());
    const fits = (message) => !known.has(`m:${message.id}`);
    const isOld = (message) => oldest !== null && Date.parse(message.created_at ?? message.time) < Date.parse(oldest);
    const messages = (snapshot.messages ?? []).filter(fits);
    this.timeline.restore({ messages: messages.filter(isOld) });
    for (const [key, item] of seen) this.timeline.items.set(key, item);
    this.timeline.restore({ ...snapshot, messages: messages.filter((message) => !isOld(message)) });
  }

  release() {
    const held = this.held;
    this.held = [];
    held.forEach((frame) => (this.filling === null ? this.read(frame) : this.held.push(frame)));
    this.changed();
  }

  changed() {
    this.version += 1;
    this.listeners.forEach((listener) => listener());
  }
}

const CONTROLS = {
  subscribed: (thread, frame) => {
    if (thread.isRefused) thread.problem = "";
    thread.isRefused = false;
    thread.place = subscribed(thread.place, frame);
  },
  caught_up: (thread, frame) => {
    thread.place = caughtUp(thread.place, frame);
  },
  gap: (thread, frame) => {
    thread.place = skipped(thread.place, frame);
    thread.fill("Part of the history is not kept any more; messages were fetched, old tool calls are gone.");
  },
  reset: (thread, frame) => {
    thread.place = reset(thread.place, frame);
    thread.fill("The stream was restarted; messages were fetched again.");
  },
};
