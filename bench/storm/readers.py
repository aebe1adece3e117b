"""Readers of a storm: WebSocket clients that follow conversations, leave at any moment, and miss nothing."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.chaos.deployment import Deployment
from bench.storm.accounts import StormAccount
from bench.storm.plan import StormReport

SECONDS = (0.2, 1.0, 3.0)
"""How long a reader stays."""

FAULTS = {1011: "internal error", 4400: "invalid frame", 4429: "too many frames"}
"""Close codes that no reader of a storm deserves."""


@dataclass(slots=True)
class ReadPosition:
    """Where a reader of a conversation is: the epoch, the last `seq`, and the last `n`."""

    epoch: str | None = None
    seq: int = 0
    n: int | None = 0
    """None after a gap: any number may follow."""


@dataclass(slots=True, kw_only=True)
class StormReader:
    """Follows conversations of an account, one after the other, and resumes where it stopped."""

    session: aiohttp.ClientSession
    deployment: Deployment
    account: StormAccount
    report: StormReport
    positions: dict[str, ReadPosition] = field(default_factory=dict)

    async def read_until(self, end: float) -> None:
        """Read until the time is over."""
        while time.monotonic() < end:
            conversation = self.account.choices.id("cnv")
            url = self.account.choices.one_of(*self.deployment.replicas).url
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                await self._follow(url, conversation)
            await asyncio.sleep(0.1)

    async def _follow(self, url: str, conversation: str) -> None:
        """Follow a conversation for a moment."""
        position = self.positions.setdefault(conversation, ReadPosition())
        subscribe: dict[str, Any] = {"type": "subscribe", "conversation": conversation, "after": position.seq}
        if position.epoch is not None:
            subscribe["epoch"] = position.epoch
        async with self.session.ws_connect(f"{url}/ws", headers=self.account.headers) as socket:
            await socket.send_json(subscribe)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.account.choices.one_of(*SECONDS)):
                    async for message in socket:
                        self._take(conversation, position, json.loads(message.data))
            if socket.close_code in FAULTS:
                self.report.missed.append(f"reader of {conversation}: closed with {socket.close_code}")

    def _take(self, conversation: str, position: ReadPosition, frame: dict[str, Any]) -> None:
        """Take a frame: each durable event has the number after that of the one before it."""
        self.report.frames += 1
        kind = frame["type"]
        if kind == "subscribed":
            position.epoch = frame["epoch"]
        elif kind == "error":
            self._take_error(conversation, frame)
        elif kind == "gap":
            position.n = None
        elif kind == "reset":
            position.epoch, position.seq, position.n = frame["epoch"], 0, None
        elif "seq" in frame:
            self._take_event(conversation, position, frame)

    def _take_error(self, conversation: str, frame: dict[str, Any]) -> None:
        if frame["code"] not in {"not_found", "unavailable"}:
            self.report.missed.append(f"reader of {conversation}: {frame}")

    def _take_event(self, conversation: str, position: ReadPosition, frame: dict[str, Any]) -> None:
        if self.account.choices.foreign_ids(conversation):
            self.report.foreign.append(f"reader of {conversation}: {frame}")
        if frame["seq"] <= position.seq and frame["type"] != "caught_up":
            self.report.missed.append(f"reader of {conversation}: {frame} after {position}")
        position.seq = max(position.seq, frame["seq"])
        if "n" in frame:
            if position.n is not None and frame["n"] != position.n + 1:
                self.report.missed.append(f"reader of {conversation}: {frame} after {position}")
            position.n = frame["n"]
