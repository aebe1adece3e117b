// Where a reader stands: nothing twice, nothing missed unnoticed.

import assert from "node:assert/strict";
import { test } from "node:test";

import { admit, caughtUp, continuation, cut, nowhere, reset, skipped, subscribed } from "../../../gateway/console/core/splice.js";

const event = (seq, n) => ({ seq, n, type: "message.completed", conversation: "cnv_1", data: {} });

function walk(events, from = nowhere()) {
  const kept = [];
  let place = from;
  for (const one of events) {
    const step = admit(place, one);
    place = step.place;
    if (step.fresh) kept.push(one.seq);
  }
  return { place, kept };
}

test("an event that was seen is not new", () => {
  const { kept } = walk([event(5, 1), event(6, 2), event(5, 1), event(6, 2), event(9, 3)]);
  assert.deepEqual(kept, [5, 6, 9]);
});

test("deltas move the cursor and are not counted", () => {
  const { place, kept } = walk([event(5, 1), event(6, undefined), event(7, undefined), event(8, 2)]);
  assert.deepEqual(kept, [5, 6, 7, 8]);
  assert.deepEqual(place.holes, []);
});

test("a number that never came is a hole", () => {
  const { place } = walk([event(5, 1), event(9, 4), event(10, 5)]);
  assert.deepEqual(place.holes, [{ from: 2, to: 3 }]);
});

test("the same lasting event stored twice is one event", () => {
  const { place, kept } = walk([event(5, 1), event(6, 2), event(7, 2), event(8, 3)]);
  assert.deepEqual(kept, [5, 6, 8]);
  assert.deepEqual(place.holes, []);
});

test("an announced gap is no hole", () => {
  const before = walk([event(5, 1)]).place;
  const { place } = walk([event(41, 30)], skipped(before, { from: 6, to: 40 }));
  assert.deepEqual(place.holes, []);
  assert.equal(place.n, 30);
});

test("a reset starts at the beginning of the new epoch", () => {
  const before = walk([event(900, 7)], subscribed(nowhere(), { epoch: "a" })).place;
  const after = reset(before, { epoch: "b" });
  assert.deepEqual(continuation(after, "cnv_1"), { type: "subscribe", conversation: "cnv_1", after: 0, batch: true });
  assert.deepEqual(walk([event(3, 8)], after).kept, [3]);
});

test("a cut keeps the cursor and is not caught up", () => {
  const place = caughtUp(walk([event(5, 1)], subscribed(nowhere(), { epoch: "a" })).place, { seq: 5 });
  assert.equal(place.caughtUp, true);
  const after = cut(place);
  assert.equal(after.caughtUp, false);
  assert.deepEqual(continuation(after, "cnv_1"), { type: "subscribe", conversation: "cnv_1", after: 5, batch: true, epoch: "a" });
});

test("a live edge beyond the last event moves the cursor there", () => {
  const place = caughtUp(walk([event(5, 1)]).place, { seq: 12 });
  assert.equal(continuation(place, "cnv_1").after, 12);
});
