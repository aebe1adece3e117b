// Receive webhooks of Dovecote: verify each, act once, answer fast. Needs Node 18 or newer and no package.
//
//   WEBHOOK_SECRET=whsec_… node receiver.mjs 8090
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const keys = process.env.WEBHOOK_SECRET.split(",").map((secret) => Buffer.from(secret.replace(/^whsec_/, ""), "base64"));
const MAX_BODY = 1024 * 1024;
const REMEMBERED = 10_000;
const TOLERANCE_SECONDS = 300;
// Ids of webhooks that were handled. Use a table of your database, so that a restart forgets none.
const seen = new Set();

/** Act on an event: here, print the answer of a turn. */
function handle(event) {
  console.log(JSON.stringify({ type: event.type, turn: event.turn, output: event.data.output }));
}

/** Return whether one of the secrets signed exactly this body within the tolerance. */
function isSigned(headers, body) {
  const { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures } = headers;
  if (!id || !signatures || !/^\d{1,12}$/.test(timestamp ?? "")) return false;
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_SECONDS) return false;
  const expected = keys.map((key) => createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest());
  const offered = signatures.split(" ").map((text) => Buffer.from(text.replace(/^v1,/, ""), "base64"));
  return expected.some((ours) => offered.some((theirs) => ours.length === theirs.length && timingSafeEqual(ours, theirs)));
}

function isNew(id) {
  const known = seen.has(id);
  seen.add(id);
  if (seen.size > REMEMBERED) seen.delete(seen.values().next().value);
  return !known;
}

const server = createServer(async (request, response) => {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    size += part.length;
    if (size > MAX_BODY) return void response.writeHead(413, { Connection: "close" }).end();
    parts.push(part);
  }
  const body = Buffer.concat(parts);
  if (!isSigned(request.headers, body)) return void response.writeHead(400).end();
  if (isNew(request.headers["webhook-id"])) handle(JSON.parse(body));
  response.writeHead(204).end();
});
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
