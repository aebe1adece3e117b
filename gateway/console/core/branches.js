// The branches of a conversation: which versions a message has, and which items are shown. No DOM, no network.
//
// A branch is {turn, turns, rerun}: the turns that the agent no longer knows of, from `turn` on, and the turn
// that runs in their place (none after /undo).

/** All known branches: those of the gateway, and those of events that came since. */
export function mergeBranches(stored, live) {
  const known = new Map(stored.map((branch) => [branch.turn, branch]));
  for (const branch of live) known.set(branch.turn, branch);
  return [...known.values()];
}

/** The versions of messages: [turns of one message, oldest first]. */
export function versionsOf(branches) {
  const earlier = new Map(branches.filter(({ rerun }) => rerun).map(({ turn, rerun }) => [rerun, turn]));
  const later = new Map([...earlier].map(([rerun, turn]) => [turn, rerun]));
  const roots = [...later.keys()].filter((turn) => !earlier.has(turn));
  return roots.map((root) => {
    const versions = [root];
    while (later.has(versions.at(-1))) versions.push(later.get(versions.at(-1)));
    return versions;
  });
}

/** The items of the versions that the reader chose: a map from the first version to one; else the newest. */
export function shownItems(items, branches, chosen) {
  const left = new Map(branches.map(({ turn, turns }) => [turn, new Set(turns)]));
  let shown = items;
  for (const versions of versionsOf(branches)) {
    const newest = versions.at(-1);
    const picked = chosen.get(versions[0]) ?? newest;
    const hidden = versions.filter((version) => version !== picked && version !== newest).map((version) => left.get(version));
    shown = shown.filter(({ turn }) => !hidden.some((turns) => turns?.has(turn)) || left.get(picked)?.has(turn));
    if (picked === newest) continue;
    const from = shown.findIndex(({ turn }) => turn === newest);
    if (from >= 0) shown = shown.filter(({ turn }, place) => place < from || left.get(picked)?.has(turn));
  }
  return shown;
}

/** Turns that were taken back, with nothing in their place. */
export function takenBack(branches) {
  return new Set(branches.filter(({ rerun }) => !rerun).flatMap(({ turns }) => turns));
}
