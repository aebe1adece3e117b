// The names under which conversations are shown.

/** The title of a conversation: a person's, else the start of its first message. */
export function nameOf(talk) {
  return talk.title ?? talk.name ?? (placeOf(talk) || talk.id);
}

/** Where in a chat a conversation is; empty for one without a chat. */
export function placeOf(talk) {
  const { channel_name: channel, room, room_name: person, thread } = talk.address ?? {};
  return [channel, person ?? room, thread].filter(Boolean).join(" · ");
}
