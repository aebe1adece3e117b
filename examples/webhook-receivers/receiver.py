"""Receive webhooks of Dovecote: verify each, act once, answer fast.

WEBHOOK_SECRET=whsec_… python receiver.py 8090
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dovecote.client import ConversationEvent, InvalidWebhook, verify_webhook

SECRETS = os.environ["WEBHOOK_SECRET"].split(",")
MAX_BODY = 1024 * 1024
REMEMBERED = 10_000

seen: OrderedDict[str, None] = OrderedDict()
"""Ids of webhooks that were handled. Use a table of your database, so that a restart forgets none."""


def handle(event: ConversationEvent) -> None:
    """Act on an event: here, print the answer of a turn."""
    print(
        json.dumps({"type": event.type, "turn": event.turn, "output": event.data.get("output")}), flush=True
    )


class WebhookHandler(BaseHTTPRequestHandler):
    """Answers 204 to a valid webhook, also to a repeated one; 400 to all others."""

    timeout = 30

    def do_POST(self) -> None:
        """Receive one webhook."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= MAX_BODY:
            self.reply(413)
            return
        try:
            event = verify_webhook(SECRETS, dict(self.headers), self.rfile.read(length))
        except InvalidWebhook as error:
            print(f"refused: {error}", file=sys.stderr)
            self.reply(400)
            return
        if self.is_new(self.headers["webhook-id"]):
            handle(event)
        self.reply(204)

    def is_new(self, webhook_id: str) -> bool:
        """Return whether a webhook is handled for the first time, and remember it."""
        known = webhook_id in seen
        seen[webhook_id] = None
        if len(seen) > REMEMBERED:
            seen.popitem(last=False)
        return not known

    def reply(self, status: int) -> None:
        """Answer without a body."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), WebhookHandler)
    print(f"listening on {server.server_port}", flush=True)
    server.serve_forever()
