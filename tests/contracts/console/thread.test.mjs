// One conversation: gaps and resets are filled from the snapshot without repeating or reordering anything.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Thread } from "../../../gateway/console/core/thread.js";

const minute = (number) => `2026-01-01T00:${String(number).padStart(2, "0")}:00Z`;
const said = (seq, n) => ({
  seq, n, id: `evt_${n}`, type: "message.completed", time: minute(n), conversation: "cnv_1", turn: `trn_${n}`,
  data: { message: `msg_${n}`, role: "assistant", text: `${n}` },
});
const kept = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => ({ id: `msg_${from + index}`, role: "assistant", text: `${from + index}`, created_at: minute(from + index) }));
const texts = (thread) => thread.timeline.list().map(({ text }) => text);

function settled(thread) {
  return thread.filling ?? Promise.resolve();
}

test("messages from before the first kept event come from the snapshot and stand first", async () => {
  const thread = new Thread("cnv_1", async () => ({ messages: kept(1, 5), jobs: [], approvals: [], seq: 50 }));
  thread.take({ type: "subscribed", conversation: "cnv_1", epoch: "a", first_seq: 40, last_seq: 50 });
  thread.take({ type: "events", items: [said(40, 4), said(50, 5)] });
  await settled(thread);
  thread.take(said(60, 6));
  assert.deepEqual(texts(thread), ["1", "2", "3", "4", "5", "6"]);
  assert.deepEqual(thread.place.holes, []);
});

test("a gap is filled between what was seen and what comes", async () => {
  const thread = new Thread("cnv_1", async () => ({ messages: kept(1, 8), jobs: [], approvals: [], seq: 80 }));
  [said(10, 1), said(20, 2)].forEach((one) => thread.take(one));
  thread.take({ type: "gap", from: 21, to: 69, snapshot: "/x" });
  thread.take(said(70, 7));
  thread.take(said(80, 8));
  await settled(thread);
  thread.take(said(90, 9));
  assert.deepEqual(texts(thread), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
  assert.deepEqual(thread.place.holes, []);
  assert.notEqual(thread.notice, "");
});

test("after a reset everything is there once", async () => {
  const thread = new Thread("cnv_1", async () => ({ messages: kept(1, 3), jobs: [], approvals: [], seq: 3 }));
  [said(10, 1), said(20, 2)].forEach((one) => thread.take(one));
  thread.take({ type: "reset", epoch: "b", snapshot: "/x" });
  [said(1, 1), said(2, 2), said(3, 3), said(4, 4)].forEach((one) => thread.take(one));
  await settled(thread);
  assert.deepEqual(texts(thread), ["1", "2", "3", "4"]);
  assert.equal(thread.continuation().epoch, "b");
});

test("a snapshot that cannot be had is said, and the stream goes on", async () => {
  const thread = new Thread("cnv_1", async () => {
    throw new Error("The gateway cannot be reached");
  });
  thread.take({ type: "gap", from: 1, to: 6, snapshot: "/x" });
  thread.take(said(7, 7));
  await settled(thread);
  assert.deepEqual(texts(thread), ["7"]);
  assert.match(thread.problem, /cannot be reached/);
});

test("a refused thread is known as one until a subscription is taken", () => {
  const thread = new Thread("cnv_9", async () => ({}));
  thread.refuse({ type: "error", code: "not_found", detail: "there is no such conversation" });
  assert.equal(thread.isRefused, true);
  assert.equal(thread.problem, "there is no such conversation");
  thread.take({ type: "subscribed", conversation: "cnv_9", epoch: "a", first_seq: 1, last_seq: 1 });
  assert.equal(thread.isRefused, false);
  assert.equal(thread.problem, "");
});
