// A reader's position in a conversation's stream. Pure: every function returns a new position.
//
// `seq` is the cursor: it strictly grows, so events that are not above it were seen already. `n` counts the
// durable events without holes, so that the page can detect missing ones.

/** The position of a new reader. `holes` lists the ranges of `n` that never arrived. */
export function nowhere() {
  return { epoch: null, seq: null, n: null, caughtUp: false, holes: [] };
}

/** The position after an event, and whether the event is new to this reader. */
export function admit(place, event) {
  if (place.seq !== null && event.seq <= place.seq) return { place, fresh: false };
  const moved = { ...place, seq: event.seq };
  if (typeof event.n !== "number") return { place: moved, fresh: true };
  if (place.n !== null && event.n <= place.n) return { place: moved, fresh: false };
  moved.n = event.n;
  if (place.n !== null && event.n > place.n + 1) {
    moved.holes = [...place.holes, { from: place.n + 1, to: event.n - 1 }];
  }
  return { place: moved, fresh: true };
}

/** Set the epoch that the server's cursors belong to. */
export function subscribed(place, frame) {
  return { ...place, epoch: frame.epoch ?? place.epoch, caughtUp: false };
}

/** The reader is at the live edge. */
export function caughtUp(place, frame) {
  const known = typeof frame.seq === "number" ? Math.max(frame.seq, place.seq ?? 0) : place.seq;
  return { ...place, seq: known, caughtUp: true };
}

/** History was trimmed: the gateway announced the missing events, so the next `n` may be any. */
export function skipped(place, frame) {
  const to = typeof frame.to === "number" ? Math.max(frame.to, place.seq ?? 0) : place.seq;
  return { ...place, seq: to, n: null };
}

/**
 * The cursor belongs to another epoch of the stream: start at its beginning. The gateway reports only once per
 * subscription that its reader is at the live edge, so a reader that was there stays there.
 */
export function reset(place, frame) {
  return { ...nowhere(), epoch: frame.epoch ?? null, caughtUp: place.caughtUp, holes: place.holes };
}

/** The connection was lost; events that were seen stay seen. */
export function cut(place) {
  return { ...place, caughtUp: false };
}

/** The frame that subscribes from this position. */
export function continuation(place, conversation) {
  const frame = { type: "subscribe", conversation, after: place.seq ?? 0, batch: true };
  if (place.epoch !== null && place.seq !== null) frame.epoch = place.epoch;
  return frame;
}
