"""A Telegram written by others: the Bot API of `tg-auto-test`, behind a loopback port with long polls.

The package is not a dependency (it declares a later Python than ours); if it is not installed, the tests
that use it skip and report it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from aiohttp import web

TOKEN = "999999:foreign-telegram-token"
SKIP_REASON = "tg-auto-test is not installed (pip install --ignore-requires-python tg-auto-test)"


@dataclass(frozen=True, slots=True)
class _ApiArguments:
    """A call's arguments as the package reads them."""

    json_parameters: dict[str, str]
    contains_files: bool = False
    multipart_data: dict[str, Any] = field(default_factory=dict)


class ThirdPartyTelegram:
    """One bot's private chats, answered by an independent implementation of the Bot API."""

    def __init__(self) -> None:
        stub = import_module("tg_auto_test.test_utils.stub_request")
        self._stub = stub.StubTelegramRequest(bot_username="dovecote_bot")
        self._updates: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()
        self.url = ""

    def settings(self) -> dict[str, Any]:
        """Return channel settings that lead here."""
        return {"token": TOKEN, "base_url": self.url, "allow": ["*"]}

    async def say(self, chat: int, text: str) -> None:
        """A person writes to the bot."""
        number = len(self._updates) + 1
        person = {"id": chat, "is_bot": False, "first_name": "Ada"}
        message = {"message_id": number, "date": int(time.time()), "from": person, "text": text}
        self._updates.append(
            {"update_id": number, "message": {**message, "chat": {"id": chat, "type": "private"}}}
        )
        await self._notify_pollers()

    def visible_texts(self) -> list[str]:
        """Return what the bot sent and made of it by edits, by message."""
        messages: dict[int, str] = {}
        for call in self._stub.calls:
            if call.api_method in {"sendMessage", "editMessageText"}:
                messages[call.result["message_id"]] = call.result["text"]
        return list(messages.values())

    def command_menu(self) -> list[str]:
        """Return the commands of the menu."""
        return [one["command"] for one in self._stub.get_scoped_commands("default")]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked after every call."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(condition)

    async def _notify_pollers(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one call."""
        method = request.match_info["method"]
        given = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        if method == "getUpdates":
            return await self._poll(given)
        if method == "deleteWebhook":
            return web.json_response({"ok": True, "result": True})
        try:
            status, body = await self._stub.do_request(request.path, "POST", _ApiArguments(given))
        except AssertionError:  # a method that it does not have
            answer = {"ok": False, "error_code": 404, "description": "Not Found"}
            return web.json_response(answer, status=404)
        await self._notify_pollers()
        return web.Response(status=status, body=body, content_type="application/json")

    async def _poll(self, given: dict[str, str]) -> web.Response:
        offset = int(given.get("offset", 0))

        def new() -> list[dict[str, Any]]:
            return [update for update in self._updates if update["update_id"] >= offset]

        async with self._changed:
            try:
                async with asyncio.timeout(min(float(given.get("timeout", 0)), 5.0)):
                    await self._changed.wait_for(lambda: bool(new()))
            except TimeoutError:
                pass
        return web.json_response({"ok": True, "result": new()})


@asynccontextmanager
async def third_party_telegram() -> AsyncIterator[ThirdPartyTelegram]:
    """Run it on a free loopback port."""
    telegram = ThirdPartyTelegram()
    application = web.Application()
    application.router.add_route("*", "/bot{token}/{method}", telegram.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    telegram.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield telegram
    finally:
        await runner.cleanup()
