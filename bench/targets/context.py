"""Measure the tokens that context adds to a model's request in a group: the frame, and earlier messages.

A token is estimated as the gateway does it, by bytes. The raw limit is the bare text that the people said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gateway_setup import BenchGateway, open_bench_gateway
from bench.targets.report import TargetRow
from gateway.agents.model.compaction import estimate_text_tokens
from openai_server import OpenAIServer, ScriptedTurn

PRIVATE = 4711
GROUPS = {"frame": -1, "talk": -2, "flood": -3}
QUESTION = "hello"
TALK, FLOOD = 20, 600
"""How many messages people exchange before a mention; a room gives a turn 20 of them by default."""

LETTERS = 200
TIMEOUT_SECONDS = 120.0


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Return about how many tokens the instructions and messages of a request have."""
    return sum(estimate_text_tokens(str(message.get("content") or "")) for message in body["messages"])


async def measure_context() -> list[TargetRow]:
    """Compare a request of a private chat with those of a group, quiet, talkative and flooded."""
    async with OpenAIServer(_answer) as model:
        with tempfile.TemporaryDirectory() as directory:
            async with open_bench_gateway(Path(directory), model=model.base_url) as deployment:
                alone = await _ask(deployment, model, PRIVATE, QUESTION)
                sizes = {name: await _ask_group(deployment, model, name) - alone for name in GROUPS}
                again = await _ask(deployment, model, GROUPS["talk"], f"@dovecote_bot {QUESTION}")
    return _rows(sizes, again - sizes["talk"] - alone)


def _rows(sizes: Mapping[str, int], again: int) -> list[TargetRow]:
    said = TALK * estimate_text_tokens("x" * LETTERS)
    words = f"messages of {LETTERS} letters before it"
    return [
        TargetRow(name="context tokens, a group's message", value=sizes["frame"], target=500),
        TargetRow(name=f"context tokens, {TALK} {words}", value=sizes["talk"], raw=said, target=said * 3),
        TargetRow(name=f"context tokens, {FLOOD} {words}", value=sizes["flood"], raw=said, target=said * 3),
        TargetRow(name="context tokens, the next message of that group", value=again, target=200),
    ]


async def _ask_group(deployment: BenchGateway, model: OpenAIServer, name: str) -> int:
    """Let people talk in a group, then ask there; returns the tokens of the request."""
    room, platform = GROUPS[name], deployment.platform
    await platform.group(room)
    for number in range({"talk": TALK, "flood": FLOOD}.get(name, 0)):
        await platform.say(room, f"{number:03d} ".ljust(LETTERS, "x"), user=7 + number % 3)
    return await _ask(deployment, model, room, f"@dovecote_bot {QUESTION}")


async def _ask(deployment: BenchGateway, model: OpenAIServer, room: int, text: str) -> int:
    platform = deployment.platform
    before = len(platform.messages(room))
    await platform.say(room, text, user=7)
    await platform.wait_for_messages(before + 1, chat=room, seconds=TIMEOUT_SECONDS)
    return prompt_tokens(model.bodies[-1])


def _answer(_body: dict[str, Any]) -> ScriptedTurn:
    return ScriptedTurn(text="ok", pieces=1)
