// The time that a person types for a schedule is the time of the chosen zone, whatever the browser's is.

import assert from "node:assert/strict";
import { test } from "node:test";

import { momentOf } from "../../../gateway/console/setup/wall_time.js";

const utc = (text, zone) => momentOf(text, zone)?.toISOString() ?? null;

test("a time without an offset is of the zone", () => {
  assert.equal(utc("2030-01-31 09:00", "Europe/Berlin"), "2030-01-31T08:00:00.000Z");
  assert.equal(utc("2030-07-31T09:00:30", "Europe/Berlin"), "2030-07-31T07:00:30.000Z");
  assert.equal(utc(" 2030-01-31 0:15 ", "Asia/Kathmandu"), "2030-01-30T18:30:00.000Z");
  assert.equal(utc("2030-03-10 23:30", "America/New_York"), "2030-03-11T03:30:00.000Z");
});

test("a time with an offset says its own zone", () => {
  assert.equal(utc("2030-01-31T09:00:00Z", "Europe/Berlin"), "2030-01-31T09:00:00.000Z");
  assert.equal(utc("2030-01-31T09:00+05:30", "Europe/Berlin"), "2030-01-31T03:30:00.000Z");
});

test("what is no time, or of no zone, is no moment", () => {
  for (const text of ["", "tomorrow", "2030-02-30 09:00", "2030-01-31 25:00", "2030-01-31"]) assert.equal(utc(text, "UTC"), null);
  assert.equal(utc("2030-01-31 09:00", "Mars/Olympus"), null);
});
