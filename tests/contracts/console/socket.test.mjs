// The connection: the key goes in the first frame, and what was seen is never asked for again.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Outbox } from "../../../gateway/console/core/outbox.js";
import { pause, Socket } from "../../../gateway/console/core/socket.js";
import { Thread } from "../../../gateway/console/core/thread.js";

/** A world with a clock that only the test moves, and sockets that only the test answers. */
function world() {
  const wires = [];
  const timers = new Map();
  let now = 0;
  class Wire {
    constructor(address) {
      Object.assign(this, { address, sent: [], isClosed: false });
      wires.push(this);
    }
    send(text) {
      this.sent.push(JSON.parse(text));
    }
    close() {
      this.isClosed = true;
    }
    say(frame) {
      this.onmessage({ data: JSON.stringify(frame) });
    }
  }
  const outside = {
    WebSocket: Wire,
    now: () => now,
    random: () => 0,
    setTimeout: (action, wait) => {
      const timer = Symbol(wait);
      timers.set(timer, { at: now + wait, action });
      return timer;
    },
    clearTimeout: (timer) => timers.delete(timer),
  };
  const pass = (time) => {
    const until = now + time;
    for (;;) {
      const due = [...timers].filter(([, { at }]) => at <= until).sort(([, one], [, other]) => one.at - other.at)[0];
      if (!due) break;
      timers.delete(due[0]);
      now = due[1].at;
      due[1].action();
    }
    now = until;
  };
  return { wires, outside, pass, last: () => wires.at(-1) };
}

function connect(place, extra = {}) {
  const states = [];
  const socket = new Socket({
    address: "ws://localhost/ws", key: () => "secret", onChange: () => states.push(socket.state),
    onRefused: () => states.push("refused"), onAnswer: () => false, outside: place.outside, ...extra,
  });
  socket.start();
  place.last().onopen();
  return { socket, states };
}

const said = (seq, n) => ({ seq, n, id: `evt_${n}`, type: "message.completed", conversation: "cnv_1", turn: "trn_1", time: "2026-01-01T00:00:00Z", data: { message: `msg_${n}`, role: "assistant", text: `${n}` } });
const thread = () => new Thread("cnv_1", async () => ({}));

test("the key goes in the first frame and not in the address", () => {
  const place = world();
  connect(place);
  assert.deepEqual(place.last().sent[0], { type: "auth", key: "secret" });
  assert.ok(!place.last().address.includes("secret"));
});

test("it is connected only after the gateway answered", () => {
  const place = world();
  const { socket } = connect(place);
  assert.equal(socket.state, "connecting");
  place.last().say({ type: "pong" });
  assert.equal(socket.state, "connected");
});

test("after a cut it continues behind the last event and shows nothing twice", () => {
  const place = world();
  const { socket } = connect(place);
  const talk = thread();
  socket.watch(talk);
  place.last().say({ type: "pong" });
  assert.equal(place.last().sent.at(-1).after, 0);
  place.last().say({ type: "subscribed", conversation: "cnv_1", epoch: "a", first_seq: 1, last_seq: 8 });
  place.last().say({ type: "events", items: [said(5, 1), said(8, 2)] });
  place.last().say({ type: "caught_up", conversation: "cnv_1", seq: 8 });
  assert.equal(talk.place.caughtUp, true);
  place.last().onclose({ code: 1012 });
  assert.equal(socket.state, "waiting");
  assert.equal(talk.place.caughtUp, false);
  place.pass(20_000);
  place.last().onopen();
  place.last().say({ type: "pong" });
  const again = place.last().sent.at(-1);
  assert.deepEqual([again.type, again.after, again.epoch], ["subscribe", 8, "a"]);
  [said(8, 2), said(9, 3)].forEach((one) => place.last().say(one));
  assert.deepEqual(talk.timeline.list().map(({ text }) => text), ["1", "2", "3"]);
});

test("the waits grow to a limit and start small again after a success", () => {
  const waits = Array.from({ length: 10 }, (_, index) => pause(index + 1, 0));
  assert.equal(waits[0], 250);
  assert.ok(waits.every((wait, index) => index === 0 || wait >= waits[index - 1]));
  assert.equal(pause(50, 0.999), 7996);
  const place = world();
  const { socket } = connect(place);
  place.last().onclose({ code: 1006 });
  place.pass(250);
  place.last().onclose({ code: 1006 });
  assert.equal(socket.failures, 2);
  place.pass(20_000);
  place.last().onopen();
  place.last().say({ type: "pong" });
  assert.equal(socket.failures, 0);
});

test("a refused key stops it for good", () => {
  const place = world();
  const { socket, states } = connect(place);
  place.last().onclose({ code: 4401 });
  assert.equal(socket.state, "stopped");
  assert.equal(states.at(-1), "refused");
  place.pass(100_000);
  assert.equal(place.wires.length, 1);
});

test("a connection that falls silent is given up", () => {
  const place = world();
  const { socket } = connect(place);
  place.last().say({ type: "pong" });
  place.pass(46_000);
  assert.equal(place.wires[0].isClosed, true);
  assert.ok(place.wires.length > 1 || socket.state === "waiting");
});

test("a late word of an old connection is not heard", () => {
  const place = world();
  const { socket } = connect(place);
  const old = place.last();
  const talk = thread();
  socket.watch(talk);
  old.say({ type: "pong" });
  const hear = old.onmessage;
  old.onclose({ code: 1006 });
  hear({ data: JSON.stringify(said(5, 1)) });
  assert.deepEqual(talk.timeline.list(), []);
});

test("a conversation that is refused says why", () => {
  const place = world();
  const { socket } = connect(place);
  const talk = thread();
  socket.watch(talk);
  place.last().say({ type: "pong" });
  place.last().say({ type: "error", code: "not_found", detail: "no such conversation" });
  assert.equal(talk.problem, "no such conversation");
});

function box(place, post = async () => ({}), isShown = () => false) {
  const accepted = [];
  const frames = [];
  let up = true;
  const outbox = new Outbox({
    send: (frame) => up && frames.push(frame) > 0,
    post,
    newId: () => `id${frames.length}`,
    onAccepted: (letter, before) => accepted.push([before, letter.conversation]),
    onChange: () => {},
    isShown,
  });
  return { outbox, frames, accepted, setUp: (value) => (up = value) };
}

test("a message that the stream has before the response is not shown twice", () => {
  const { outbox, frames } = box(null, undefined, (conversation, turn) => conversation === "cnv_1" && turn === "trn_1");
  outbox.add({ conversation: "cnv_1", text: "hi" });
  outbox.add({ conversation: "cnv_1", text: "again" });
  outbox.answered({ type: "accepted", id: frames[0].id, turn: "trn_1", conversation: "cnv_1" });
  outbox.answered({ type: "accepted", id: frames[1].id, turn: "trn_2", conversation: "cnv_1" });
  assert.deepEqual(outbox.of("cnv_1").map(({ text }) => text), ["again"]);
});

test("a message that was not accepted goes out again with the same id", () => {
  const { outbox, frames, setUp } = box();
  setUp(false);
  outbox.add({ conversation: "cnv_1", text: "hi" });
  assert.equal(frames.length, 0);
  setUp(true);
  outbox.flush();
  outbox.flush();
  assert.equal(frames.length, 2);
  assert.equal(frames[0].id, frames[1].id);
  outbox.answered({ type: "accepted", id: frames[0].id, turn: "trn_1", conversation: "cnv_1" });
  outbox.flush();
  assert.equal(frames.length, 2);
  outbox.arrived((turn) => turn === "trn_1");
  assert.deepEqual(outbox.of("cnv_1"), []);
});

test("a new conversation's name becomes its id", () => {
  const { outbox, frames, accepted } = box();
  outbox.add({ conversation: "mine", text: "hi", agent: "default", isNew: true });
  assert.deepEqual([frames[0].conversation, frames[0].agent], ["mine", "default"]);
  outbox.answered({ type: "accepted", id: frames[0].id, turn: "trn_1", conversation: "cnv_9" });
  assert.deepEqual(accepted, [["mine", "cnv_9"]]);
});

test("a refused message can be sent again or given up", () => {
  const { outbox, frames } = box();
  outbox.add({ conversation: "cnv_1", text: "hi" });
  assert.equal(outbox.answered({ type: "error", id: frames[0].id, code: "too_many", detail: "the queue is full" }), true);
  assert.equal(outbox.of("cnv_1")[0].problem, "the queue is full");
  outbox.retry(frames[0].id);
  assert.equal(frames.length, 2);
  outbox.discard(frames[0].id);
  assert.deepEqual(outbox.of("cnv_1"), []);
});

test("a text too large for a frame goes by HTTP with the same idempotency", async () => {
  const posts = [];
  const post = async (path, body, id) => {
    posts.push([path, body.text.length, id]);
    return { turnId: "trn_1", conversationId: "cnv_1" };
  };
  const { outbox, frames } = box(null, post);
  const id = outbox.add({ conversation: "cnv_1", text: "x".repeat(100_000) });
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(posts, [["conversations/cnv_1/messages", 100_000, id]]);
  assert.equal(frames.length, 0);
  assert.equal(outbox.of("cnv_1")[0].state, "accepted");
});

test("what counts is the size on the wire, not the number of letters", () => {
  const { outbox, frames } = box(null, () => new Promise(() => {}));
  outbox.add({ conversation: "cnv_1", text: "漢".repeat(20_000) });
  assert.equal(frames.length, 0);
  outbox.add({ conversation: "cnv_1", text: "x".repeat(20_000) });
  assert.equal(frames.length, 1);
});

test("a command that was executed is no message any more", () => {
  const { outbox, frames } = box();
  outbox.add({ conversation: "cnv_1", text: "/stop" });
  outbox.answered({ type: "accepted", id: frames[0].id, turn: null, conversation: "cnv_1", command: "stop", reply: "Stopping 1 turn." });
  assert.deepEqual(outbox.of("cnv_1"), []);
});
