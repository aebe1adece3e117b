"""The public API of a simulated Pancake, and what people and agents do there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

from aiohttp import web

from channels.inbox.simulator import SimulatedMessage, SimulatedPlatform

PAGE, TOKEN, INBOX, COMMENTS = "5001", "simulated-page-token", "5001_ada", "5001_post-1_c1"
ADA = {"id": "ada-7", "name": "Ada"}
AGENT = {"id": PAGE, "name": "The Loft", "admin_name": "Bob", "uid": "agent-1"}
MAX_TEXT, PAGE_SIZE, LATEST = 2000, 60, 20
SUSPENDED_AFTER = 10
"""Failed posts in a row after which the simulated webhook is suspended; Pancake counts 80 % in 30 minutes."""


class Simulator(SimulatedPlatform):
    """One page with an inbox conversation and a comment below a post."""

    def __init__(self) -> None:
        super().__init__()
        self.token = TOKEN
        self.is_suspended = False
        self.conversations = {
            INBOX: {"id": INBOX, "type": "INBOX", "customer_id": "cus-1"},
            COMMENTS: {"id": COMMENTS, "type": "COMMENT", "customer_id": "cus-1", "post_id": "5001_post-1"},
        }
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self.conversations}
        self.unreadable: set[str] = set()
        """Conversations that are listed, and whose messages are answered with 500."""
        self.requests: list[dict[str, Any]] = []
        self.uploads: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self._numbers = count(1)
        for one in self.conversations.values():
            one["updated_at"] = _now()

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings of the page, open to everybody."""
        base = {"page_id": PAGE, "page_access_token": TOKEN, "base_url": f"{self.url}/api/public_api"}
        return {**base, "mode": "polling", "poll_seconds": 0.05, "allow": ["*"], **others}

    def routes(self) -> list[web.RouteDef]:
        """Return the API and the files."""
        page = "/api/public_api/{version}/pages/{page}"
        return [
            web.get(f"{page}/conversations", self._list_conversations),
            web.get(f"{page}/conversations/{{conversation}}/messages", self._list_messages),
            web.post(f"{page}/conversations/{{conversation}}/messages", self._send),
            web.post(f"{page}/upload_contents", self._upload),
            web.get("/files/{name}", self._get_file),
        ]

    def operation_of(self, request: web.Request) -> str:
        """Name messages "send", stored files "upload" and questions for conversations "receive"."""
        if request.path.endswith("/upload_contents"):
            return "upload"
        if request.method == "POST" and request.path.endswith("/messages"):
            return "send"
        return "receive" if request.path.endswith("/conversations") else "other"

    def messages(self, room: Any = None) -> list[SimulatedMessage]:
        """Return the messages that came through the API."""
        del room
        return [
            SimulatedMessage(id=row["id"], room=name, thread=None, text=row["message"], raw=row["action"])
            for name, rows in self.rows.items()
            for row in rows
            if "action" in row
        ]

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.query.get("page_access_token") != self.token or request.match_info["page"] != PAGE:
            return _refuse(200, "Invalid access_token", error_code=102)
        conversation = request.match_info.get("conversation")
        if conversation is not None and conversation not in self.conversations:
            return _refuse(404, "Conversation not found")
        return None

    async def _list_conversations(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        rows = sorted(self.conversations.values(), key=lambda one: str(one["updated_at"]), reverse=True)
        last = request.query.get("last_conversation_id")
        start = next((n + 1 for n, one in enumerate(rows) if one["id"] == last), 0)
        return web.json_response({"success": True, "conversations": rows[start : start + PAGE_SIZE]})

    async def _list_messages(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if request.match_info["conversation"] in self.unreadable:
            return _refuse(500, "Internal error")
        known = self.rows[request.match_info["conversation"]]
        end = len(known) - int(request.query.get("current_count", "0"))
        rows = known[max(0, end - LATEST) : max(0, end)]
        return web.json_response({"success": True, "messages": rows})

    async def _send(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        given, name = await request.json(), request.match_info["conversation"]
        is_comment = self.conversations[name]["type"] == "COMMENT"
        allowed = {"reply_comment", "private_replies"} if is_comment else {"reply_inbox"}
        text, contents = given.get("message", ""), given.get("content_ids", [])
        if given.get("action") not in allowed or (is_comment and not given.get("message_id")):
            return _refuse(200, "Invalid action")
        if given["action"] == "private_replies" and any(
            (one["action"], one.get("message_id")) == ("private_replies", given["message_id"])
            for one in self.requests
        ):
            return _refuse(200, "(#10900) Activity already replied to")
        if not text and not contents:
            return _refuse(200, "Message is empty")
        if len(text) > MAX_TEXT or any(one not in self.uploads for one in contents):
            return _refuse(200, "(#100) Length of param message[text] must be less than or equal to 2000")
        self.requests.append(given)
        row = self._add(name, text, {"id": PAGE, "name": "The Loft"}, action=given["action"])
        return web.json_response({"success": True, "id": row["id"], "message": text})

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        number = f"content-{next(self._numbers)}"
        self.uploads[number] = file.file.read()
        return web.json_response({"success": True, "id": number, "attachment_type": "PHOTO"})

    async def _get_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["name"]])

    def _add(self, name: str, text: str, author: dict[str, Any], **others: Any) -> dict[str, Any]:
        kind, moment = self.conversations[name]["type"], _now()
        row: dict[str, Any] = {
            "id": f"m_{next(self._numbers)}",
            "conversation_id": name,
            "page_id": PAGE,
            "type": kind,
        }
        row |= {"message": text, "from": author, "inserted_at": moment, "attachments": [], **others}
        self.rows[name].append(row)
        self.conversations[name]["updated_at"] = moment
        return row

    async def say(self, room: Any, text: str, **others: Any) -> str:
        """Write to the page's inbox, whatever the room is called."""
        del room
        return await self.write(INBOX, text, **others)

    async def write(self, name: str, text: str, *, author: dict[str, Any] = ADA, **others: Any) -> str:
        """Write into a conversation, and announce it where a webhook is set."""
        row = self._add(name, text, author, **others)
        if self.hook_url and not self.is_suspended:
            await self.post(self.event(name, row), {"Content-Type": "application/json"})
            latest = self.hook_statuses[-SUSPENDED_AFTER:]
            self.is_suspended = len(latest) == SUSPENDED_AFTER and 200 not in latest  # noqa: PLR2004
        await self.notify()
        return str(row["id"])

    def event(self, name: str, row: dict[str, Any]) -> bytes:
        """Return the body of a post."""
        data = {"conversation": self.conversations[name], "message": row}
        return json.dumps({"page_id": PAGE, "event_type": "messaging", "data": data}).encode()


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")


def _refuse(status: int, message: str, **others: Any) -> web.Response:
    return web.json_response({"success": False, "message": message, **others}, status=status)


@asynccontextmanager
async def simulate(*, port: int = 0) -> AsyncIterator[Simulator]:
    """Run a simulated Pancake on a loopback port, a free one by default."""
    async with Simulator().serve(port) as simulator:
        yield simulator
