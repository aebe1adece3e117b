// Changes of records that other tabs, people and programs may change at the same time.

import { call, Problem, versionOf } from "../core/api.js";
import { useRef, useState } from "../vendor/hooks.mjs";

const MOST_TRIES = 5;
const CONFIG = { read: ({ config }) => config, write: (config) => ({ config }), below: "/config" };
export const SETTINGS = { read: ({ settings }) => settings, write: (settings) => ({ settings }), below: "/settings" };
export const FIELDS = { read: (record) => record, write: (fields) => fields, below: "" };

/**
 * Change a part of a record to `wanted`, which has only what a person changed: {key: value}, null removes. `seen` is the
 * record as it was shown. What others changed in other keys stays. Throws a Problem that names the keys which somebody
 * else changed since, with `now`, the record as it is; to change it all the same, give that as `seen`.
 */
export async function changeRecord(path, seen, wanted, part = CONFIG) {
  let now = versionOf(seen) === undefined ? await call("GET", path) : seen;
  for (let tries = 1; ; tries += 1) {
    const keys = changedKeys(part.read(seen), part.read(now), wanted);
    if (keys.length > 0) throw changedMeanwhile(now, keys, part);
    try {
      return await call("PATCH", path, { body: part.write(wanted), match: versionOf(now) });
    } catch (problem) {
      if (problem.status !== 412 || tries === MOST_TRIES) throw problem;
      now = problem.current;
    }
  }
}

/** The keys that a person and somebody else changed to different values. */
function changedKeys(seen, now, wanted) {
  return Object.keys(wanted).filter((key) => !isSame(now[key], seen[key]) && !isSame(now[key], wanted[key]));
}

function isSame(one, other) {
  return JSON.stringify(one ?? null) === JSON.stringify(other ?? null);
}

/** The Problem that somebody else changed these keys; `now` is what the record is. */
export function changedMeanwhile(now, keys, { read, below }) {
  const errors = keys.map((key) => ({ pointer: `${below}/${key}`, detail: `was changed since you read it, to ${shown(read(now)[key])}` }));
  return Object.assign(new Problem({ title: "This was changed since you read it", errors }), { now });
}

function shown(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value ?? null);
  return text === "" ? "nothing" : `“${text.slice(0, 200)}”`;
}

/**
 * A form's changes of a record: `save` what a person changed, or `reload` what somebody else made of it. After a conflict
 * a second `save` replaces the other change. `round` is the form's key: it begins again with what the record is then.
 */
export function useRecordChanges(path, record, refresh, part = CONFIG) {
  const seen = useRef(record);
  const [round, setRound] = useState(0);
  const save = async (wanted) => {
    try {
      seen.current = await changeRecord(path, seen.current, wanted, part);
    } catch (problem) {
      seen.current = problem.now ?? seen.current;
      throw problem;
    }
    await refresh();
  };
  const reload = async () => {
    await refresh();
    setRound((known) => known + 1);
  };
  return { seen, save, reload, round };
}
