"""The two APIs of a simulated Zalo, and what a person does there."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from aiohttp import web

from channels.inbox.simulator import SimulatedMessage, SimulatedPlatform

TOKEN = "4242001:simulated-zalo-token"  # noqa: S105 - of a simulated bot
BOT, PERSON, ROOM, APP, OA = "4242001", "ada-7", "chat-7", "990001", "oa-1"
APP_SECRET, OA_SECRET, OAUTH_CODE = "simulated-app-secret", "simulated-oa-secret", "refresh-1"
MAX_TEXT = 2000
WINDOW_SECONDS = 48 * 3600


class Simulator(SimulatedPlatform):
    """One bot and one Official Account, and a person who writes to both."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.access = TOKEN, "access-1-simulated"
        self.refresh = OAUTH_CODE + "-simulated"
        self.token_seconds = 90_000
        self.hook: dict[str, str] = {"url": "", "secret_token": ""}
        self.updates: deque[dict[str, Any]] = deque()
        self.sent: list[SimulatedMessage] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.members = {ROOM}
        self.last_written = {PERSON: time.time()}
        self.files: dict[str, bytes] = {}
        self.broken_pictures: set[str] = set()
        """Links of pictures that Zalo cannot read."""
        self._numbers = count(1)

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings of the bot, or of the Official Account with platform="oa"."""
        urls = {"base_url": self.url, "oa_url": self.url, "oauth_url": self.url, "allow": ["*"]}
        bot = {"token": TOKEN, "poll_seconds": 5}
        oa = {"app_id": APP, "oa_secret": OA_SECRET, "app_secret": APP_SECRET}
        return {**urls, **(oa if others.get("platform") == "oa" else bot), **others}

    def routes(self) -> list[web.RouteDef]:
        """Return both APIs and the pictures."""
        return [
            web.post("/bot{token}/{method}", self._call_bot),
            web.get("/v2.0/oa/getoa", self._get_oa),
            web.post("/v3.0/oa/message/cs", self._send_oa),
            web.post("/v4/oa/access_token", self._renew),
            web.get("/files/{name}", self._get_file),
        ]

    def operation_of(self, request: web.Request) -> str:
        """Name messages "send", polls "receive" and renewals of tokens "renew"."""
        if request.path.endswith("/oa/access_token"):
            return "renew"
        if request.path.endswith(("/sendMessage", "/sendPhoto", "/message/cs")):
            return "send"
        return "receive" if request.path.endswith(("/getUpdates", "/getWebhookInfo")) else "other"

    def messages(self, room: Any = None) -> list[SimulatedMessage]:
        """Return the bot's messages."""
        del room  # there is one person
        return list(self.sent)

    # The Bot Platform

    async def _call_bot(self, request: web.Request) -> web.Response:
        if request.match_info["token"] != self.token:
            return _refuse(401, "Unauthorized")
        given = await request.json() if request.can_read_body else {}
        method = request.match_info["method"]
        self.calls.append((method, given))
        match method:
            case "getMe":
                me = {
                    "id": BOT,
                    "account_name": "bot.dove",
                    "account_type": "BASIC",
                    "display_name": "Bot Dove",
                }
                return _grant(me)
            case "getUpdates":
                return await self._poll(given)
        return self._answer_bot(method, given)

    def _answer_bot(self, method: str, given: dict[str, Any]) -> web.Response:
        match method:
            case "getWebhookInfo":
                return _grant({"url": self.hook["url"]})
            case "setWebhook" | "deleteWebhook":
                return self._set_webhook(given)
            case "sendChatAction":
                return _grant(result=True)
            case "sendMessage" | "sendPhoto":
                return self._send_bot(given)
        return _refuse(404, "Not Found")

    def _set_webhook(self, given: dict[str, Any]) -> web.Response:
        secret = given.get("secret_token", "")
        if given and not 8 <= len(secret) <= 256:  # noqa: PLR2004
            return _refuse(400, "Bad Request: secret_token must have 8 to 256 characters")
        self.hook = {"url": given.get("url", ""), "secret_token": secret}
        return _grant({"url": self.hook["url"]})

    async def _poll(self, given: dict[str, Any]) -> web.Response:
        """Give out one update and forget it, or answer 408 after the time."""
        if self.hook["url"]:
            return _refuse(409, "Conflict: a webhook is set")
        end = time.monotonic() + float(given.get("timeout", "30"))
        while not self.updates and time.monotonic() < end and request_token(self):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return _grant(self.updates.popleft()) if self.updates else _refuse(408, "Request timeout")

    def _send_bot(self, given: dict[str, Any]) -> web.Response:
        text, chat = given.get("text", given.get("caption", "")), str(given.get("chat_id"))
        if chat not in self.members:
            return _refuse(403, "Forbidden: the bot was removed from the chat")
        if given.get("photo") in self.broken_pictures:
            return _refuse(400, "Bad Request: the photo cannot be read")
        if not text and "photo" not in given:
            return _refuse(400, "Bad Request: message text is empty")
        if len(text) > MAX_TEXT:
            return _refuse(400, "Bad Request: message is too long")
        return _grant({"message_id": self._add(chat, text, given.get("photo", "")), "date": _now()})

    def _add(self, room: str, text: str, raw: str) -> str:
        number = f"msg-{next(self._numbers)}"
        self.sent.append(SimulatedMessage(id=number, room=room, thread=None, text=text, raw=raw))
        return number

    # The Official Account

    def _is_allowed(self, request: web.Request) -> bool:
        return request.headers.get("access_token") == self.access

    async def _get_oa(self, request: web.Request) -> web.Response:
        if not self._is_allowed(request):
            return web.json_response({"error": -216, "message": "Access token is invalid"})
        return web.json_response({"error": 0, "message": "Success", "data": {"oa_id": OA, "name": "Dove"}})

    async def _send_oa(self, request: web.Request) -> web.Response:
        given = await request.json()
        person, message = str(given["recipient"]["user_id"]), given["message"]
        if not self._is_allowed(request):
            return web.json_response({"error": -216, "message": "Access token is invalid"})
        if any(one in self.broken_pictures for one in _pictures(message)):
            return web.json_response({"error": -201, "message": "attachment is invalid!"})
        if person not in self.last_written:
            return web.json_response({"error": -213, "message": "User has not followed OA"})
        if time.time() - self.last_written[person] > WINDOW_SECONDS:
            return web.json_response({"error": -230, "message": "User has not interacted with OA recently"})
        if len(message.get("text", "")) > MAX_TEXT:
            return web.json_response({"error": -210, "message": "Message text is too long"})
        number = self._add(person, message.get("text", ""), "".join(_pictures(message)))
        return web.json_response({"error": 0, "message": "Success", "data": {"message_id": number}})

    async def _renew(self, request: web.Request) -> web.Response:
        given = await request.post()
        is_ours = request.headers.get("secret_key") == APP_SECRET and given.get("app_id") == APP
        if not is_ours or given.get("refresh_token") != self.refresh:
            return web.json_response({"error_name": "Invalid refresh token", "error": -14014})
        number = next(self._numbers)
        self.access, self.refresh = f"access-{number}-simulated", f"refresh-{number}-{'x' * 900}"
        tokens = {
            "access_token": self.access,
            "refresh_token": self.refresh,
            "expires_in": str(self.token_seconds),
        }
        return web.json_response(tokens)

    async def _get_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["name"]])

    # The person

    async def say(self, room: Any, text: str, **others: Any) -> str:
        """Write to the bot, whatever the room is called."""
        del room
        update = self.update("text", text=text, **others)
        await self.push(update)
        return str(update["message"]["message_id"])

    def update(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return an update of the Bot Platform."""
        person = {"id": fields.pop("author", PERSON), "display_name": "Ada", "is_bot": False}
        chat = {"id": fields.pop("chat", ROOM), "chat_type": fields.pop("chat_type", "PRIVATE")}
        message = {"message_id": f"in-{next(self._numbers)}", "date": _now(), "from": person, "chat": chat}
        return {"event_name": f"message.{kind}.received", "message": {**message, **fields}}

    async def push(self, update: dict[str, Any]) -> None:
        """Deliver an update: post it where a webhook is set, else keep it for a poll."""
        if not self.hook["url"]:
            self.updates.append(update)
            return
        self.hook_url = self.hook["url"]
        headers = {"X-Bot-Api-Secret-Token": self.hook["secret_token"], "Content-Type": "application/json"}
        await self.post(json.dumps({"ok": True, "result": update}).encode(), headers)

    async def write_to_oa(self, text: str, *, person: str = PERSON, **message: Any) -> int:
        """Write to the Official Account, whose webhook is at `hook_url`; return the answer's status."""
        self.last_written[person] = time.time()
        body = self.oa_event(text, person=person, **message)
        return await self.post(body, {**oa_headers(body), "Content-Type": "application/json"})

    def oa_event(self, text: str, *, person: str = PERSON, kind: str = "text", **message: Any) -> bytes:
        """Return an event of the Official Account; other kinds than text have `attachments`."""
        about = {"msg_id": f"in-{next(self._numbers)}", "text": text, **message}
        event = {"app_id": APP, "event_name": f"user_send_{kind}", "timestamp": str(_now())}
        people = {"sender": {"id": person}, "recipient": {"id": OA}}
        return json.dumps({**event, **people, "message": about}).encode()


def _pictures(message: dict[str, Any]) -> list[str]:
    """Return the links of the pictures in a message to a person."""
    elements = message.get("attachment", {}).get("payload", {}).get("elements", [])
    return [one["url"] for one in elements]


def request_token(simulator: Simulator) -> bool:
    """Return whether the token is still the bot's; a poll in progress ends when it is revoked."""
    return simulator.token == TOKEN


def oa_headers(body: bytes, *, scheme: str = "sha256", secret: str = OA_SECRET) -> dict[str, str]:
    """Return the signature of a post, as documented or by HMAC."""
    stamp = json.loads(body).get("timestamp", "")
    documented = hashlib.sha256(APP.encode() + body + f"{stamp}{secret}".encode()).hexdigest()
    keyed = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"x-zevent-signature": f"mac={documented if scheme == 'sha256' else keyed}"}


def _now() -> int:
    return int(time.time() * 1000)


def _grant(result: Any) -> web.Response:
    return web.json_response({"ok": True, "result": result})


def _refuse(code: int, description: str) -> web.Response:
    return web.json_response({"ok": False, "error_code": code, "description": description})


@asynccontextmanager
async def simulate(*, port: int = 0) -> AsyncIterator[Simulator]:
    """Run a simulated Zalo on a loopback port, a free one by default."""
    async with Simulator().serve(port) as simulator:
        yield simulator
