// Which items of a conversation with branches are shown.

import assert from "node:assert/strict";
import { test } from "node:test";

import { mergeBranches, shownItems, takenBack, versionsOf } from "../../../gateway/console/core/branches.js";
import { Timeline } from "../../../gateway/console/core/timeline.js";

const items = (...turns) => turns.map((turn) => ({ key: turn, turn }));
const turnsOf = (shown) => shown.map(({ turn }) => turn);
const EDITED = [
  { turn: "b", turns: ["b", "c"], rerun: "b2" },
  { turn: "b2", turns: ["b2", "d"], rerun: "b3" },
];
const ALL = items("a", "b", "c", "b2", "d", "b3", "e");

test("the newest version of a message is shown with what followed it", () => {
  assert.deepEqual(versionsOf(EDITED), [["b", "b2", "b3"]]);
  assert.deepEqual(turnsOf(shownItems(ALL, EDITED, new Map())), ["a", "b3", "e"]);
});

test("an earlier version is shown with what followed that one", () => {
  assert.deepEqual(turnsOf(shownItems(ALL, EDITED, new Map([["b", "b"]]))), ["a", "b", "c"]);
  assert.deepEqual(turnsOf(shownItems(ALL, EDITED, new Map([["b", "b2"]]))), ["a", "b2", "d"]);
  assert.deepEqual(turnsOf(shownItems(ALL, EDITED, new Map([["b", "b3"]]))), ["a", "b3", "e"]);
});

test("a branch inside a branch keeps its newest version", () => {
  const nested = [{ turn: "b", turns: ["b"], rerun: "b2" }, { turn: "a", turns: ["a", "b2"], rerun: "a2" }];
  const all = items("a", "b", "b2", "a2");
  assert.deepEqual(turnsOf(shownItems(all, nested, new Map())), ["a2"]);
  assert.deepEqual(turnsOf(shownItems(all, nested, new Map([["a", "a"]]))), ["a", "b2"]);
});

test("what was taken back stays, and is marked", () => {
  const undone = [{ turn: "b", turns: ["b", "c"], rerun: null }];
  assert.deepEqual(turnsOf(shownItems(items("a", "b", "c"), undone, new Map())), ["a", "b", "c"]);
  assert.deepEqual([...takenBack(undone)], ["b", "c"]);
});

test("events add branches, and leave the turn's state as it was", () => {
  const timeline = new Timeline();
  const event = (type, data, turn) => ({ id: `${type} ${turn}`, type, time: "2026-01-01T00:00:00Z", data, turn });
  timeline.apply(event("turn.started", { attempt: 1 }, "b"));
  timeline.apply(event("turn.completed", { attempt: 1 }, "b"));
  timeline.apply(event("turn.undone", { turns: ["b"], rerun: "b2" }, "b"));
  assert.deepEqual(timeline.open(), []);
  const live = [...timeline.branches.values()];
  assert.deepEqual(mergeBranches([{ turn: "a", turns: ["a"], rerun: null }], live).map(({ turn }) => turn), ["a", "b"]);
});
