"""An unknown sender writes to a bot: a code, an operator who approves the pairing, and an answer."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.telegram.simulator import Simulator, simulate
from commands import PIPE, gateway_command
from gateway.config.load import environment_without_ours
from gateway_process import GatewayProcess, channel_env, gateway

PERSON = 4711
GROUP = -1234
PAIRINGS = "/accounts/me/channels/telegram/pairings"


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run Telegram on loopback."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def running(platform: Simulator, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway with one Telegram channel without pairings."""
    env = channel_env("telegram", platform.settings(allow=["pairing"]))
    async with gateway(tmp_path / "data", env=env) as process:
        yield process


async def wait_for_pairing_code(platform: Simulator, chat: int, count: int = 1) -> str:
    """Wait for the bot's answer to an unknown sender and return the code in it."""
    said = await platform.wait_for_messages(count, chat=chat)
    found = re.search(r"pair telegram (\w{8})", said[-1].text)
    assert found is not None, said[-1].text
    return found.group(1)


async def dovecote(process: GatewayProcess, *words: str) -> str:
    """Run a command towards the gateway and return what it printed."""
    command = await gateway_command(
        *(*words, "--data", str(process.data)),
        cwd=process.data.parent,
        env=environment_without_ours(),
        stdout=PIPE,
    )
    out, _ = await command.communicate()
    assert command.returncode == 0
    return out.decode()


async def test_a_paired_person_is_notified_and_answered(platform: Simulator, running: GatewayProcess) -> None:
    """The code pairs its sender, who is notified and gets answers from then on."""
    await platform.say(PERSON, "!echo before", name="Ada")
    code = await wait_for_pairing_code(platform, PERSON)
    assert "Ada" in await dovecote(running, "channels", "pair", "telegram", code.lower())
    reported = await platform.wait_for_messages(2, chat=PERSON)
    assert reported[-1].text == "You are in."
    await platform.say(PERSON, "!echo after")
    answered = await platform.wait_for_messages(3, chat=PERSON)
    assert "after" in answered[-1].text
    listed = json.loads(await dovecote(running, "channels", "pairings", "telegram", "--json"))
    assert [(one["person"], one["state"]) for one in listed] == [(str(PERSON), "paired")]


async def test_a_pairing_stays_where_it_was_made(platform: Simulator, running: GatewayProcess) -> None:
    """A privately paired user is unknown in a group, and is listed there as waiting, without the code."""
    await platform.say(PERSON, "!echo before")
    code = await wait_for_pairing_code(platform, PERSON)
    async with running.http() as session:
        async with session.post(PAIRINGS, json={"code": code}) as answer:
            assert answer.status == 200, await answer.text()
        await platform.say(GROUP, f"@{platform.world.bot['username']} !echo secret", user=PERSON)
        other = await wait_for_pairing_code(platform, GROUP)
        async with session.get(PAIRINGS) as answer:
            text = await answer.text()
    states = {one["person"]: one["state"] for one in json.loads(text)["items"]}
    assert states == {str(PERSON): "paired", f"{PERSON}@{GROUP}": "waiting"}
    assert other not in text
    assert all("secret" not in post.text for post in platform.messages(GROUP))


async def test_an_unpaired_person_is_an_unknown_sender_again(
    platform: Simulator, running: GatewayProcess
) -> None:
    """After `unpair` nothing runs for the person; they get a new code."""
    await platform.say(PERSON, "!echo before")
    first = await wait_for_pairing_code(platform, PERSON)
    await dovecote(running, "channels", "pair", "telegram", first)
    await platform.wait_for_messages(2, chat=PERSON)
    await dovecote(running, "channels", "unpair", "telegram", str(PERSON))
    await platform.say(PERSON, "!echo secret")
    assert await wait_for_pairing_code(platform, PERSON, 3) != first
    async with running.http() as session, session.delete(f"{PAIRINGS}/1") as answer:
        assert answer.status == 404


async def test_codes_cannot_be_guessed_at_leisure(platform: Simulator, running: GatewayProcess) -> None:
    """A used or wrong code is not found; after ten of them even a right one must wait."""
    await platform.say(PERSON, "hello")
    code = await wait_for_pairing_code(platform, PERSON)
    statuses = []
    async with running.http() as session:
        for guess in [f"AAAA{number:04}" for number in range(10)] + [code]:
            async with session.post(PAIRINGS, json={"code": guess}) as answer:
                statuses.append((answer.status, "Retry-After" in answer.headers))
    assert statuses == [(404, False)] * 10 + [(429, True)]
