// Changes of records that other tabs, people and programs may change at the same time.

import { call, Problem } from "../core/api.js";

/**
 * Change a record's config to `wanted`, which has only what a person changed: {key: value}, null removes. `seen` is the
 * record as it was shown. Throws a Problem that names the keys which somebody else changed since, with `now`, the
 * record as it is; to change it all the same, give that as `seen`.
 */
export async function changeConfig(path, seen, wanted) {
  const now = await call("GET", path);
  const faults = Object.keys(wanted).filter((key) => !isSame(now.config[key], seen.config[key]) && !isSame(now.config[key], wanted[key]));
  if (faults.length > 0) throw changedMeanwhile(now, faults);
  return call("PATCH", path, { body: { config: wanted } });
}

function isSame(one, other) {
  return JSON.stringify(one ?? null) === JSON.stringify(other ?? null);
}

function changedMeanwhile(now, keys) {
  const errors = keys.map((key) => ({ pointer: `/config/${key}`, detail: `was changed meanwhile, to ${shown(now.config[key])}. Press the button again to replace that.` }));
  return Object.assign(new Problem({ title: "Somebody else changed this meanwhile", errors }), { now });
}

function shown(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value ?? null);
  return text === "" ? "nothing" : `“${text.slice(0, 200)}”`;
}
