// Modules that are fetched again after their request failed.

import assert from "node:assert/strict";
import { test } from "node:test";

import { importModule } from "../../../gateway/console/core/modules.js";

const LOST = new TypeError("Failed to fetch dynamically imported module: http://127.0.0.1/home.js");

/** Fetches that end as `outcomes` say, and what was asked for and waited. */
function story(...outcomes) {
  const seen = { addresses: [], pauses: [] };
  const fetchModule = async (address) => {
    seen.addresses.push(address);
    const outcome = outcomes.shift();
    if (outcome instanceof Error) throw outcome;
    return outcome;
  };
  const pause = async (milliseconds) => seen.pauses.push(milliseconds);
  return { seen, given: { fetchModule, pause } };
}

test("a lost module is asked for again at another address, later each time", async () => {
  const { seen, given } = story(LOST, LOST, "module");
  assert.equal(await importModule("/home.js", given), "module");
  assert.deepEqual(seen.addresses, ["/home.js", "/home.js?try=1", "/home.js?try=2"]);
  assert.ok(seen.pauses[1] > seen.pauses[0]);
});

test("a module that stays lost fails after four tries", async () => {
  const { seen, given } = story(LOST, LOST, LOST, LOST, "too late");
  await assert.rejects(importModule("/home.js", given), LOST);
  assert.equal(seen.addresses.length, 4);
});

test("a module with a fault of its own is not fetched again", async () => {
  const { seen, given } = story(new TypeError("x is not a function"), "never");
  await assert.rejects(importModule("/home.js", given), /not a function/);
  assert.equal(seen.addresses.length, 1);
});
