"""Tokens of installations that end: each is replaced once, and no new one is lost."""

from __future__ import annotations

import asyncio

import pytest

from channels.errors import Unauthorized, Unreachable
from channels.message import Address, Message, Reply, SentMessage
from channels.port import Connection
from channels.slack import plugin
from channels.slack.simulator import Simulator
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelSecrets, MemoryChannelState
from slack_connections import EAST, WEST, install, make_reply


async def test_an_expiring_token_is_replaced(simulator: Simulator, app: Connection) -> None:
    """The refresh token is used once, however many sends need the new token."""
    simulator.server.installations.expires_in = 60
    await install(app, simulator, EAST)
    simulator.server.installations.expires_in = 43_200
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await simulator.say("C0EAST", "hello")
        (message,) = await recorder.wait(1)
        assert isinstance(message, Message)
        for number in range(3):
            await app.sender.send(message.address, Reply(text="hello", key=f"dlv_{number}.0"))
    assert (simulator.server.installations.rotations, len(simulator.messages())) == (1, 3)


@pytest.mark.parametrize("valid_seconds", [60, -60])
async def test_a_token_that_cannot_be_replaced_stops_no_workspace(
    simulator: Simulator, app: Connection, valid_seconds: int
) -> None:
    """Messages of both workspaces arrive, and the old token is used while it is valid."""
    simulator.server.installations.expires_in = valid_seconds
    await install(app, simulator, WEST)
    simulator.server.installations.revoke_refresh_tokens(WEST)
    simulator.server.installations.expires_in = 43_200
    await install(app, simulator, EAST)
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        for room in ("C0WEST", "C0EAST"):
            await simulator.say(room, room)
        west, east = await recorder.wait(2)
        assert isinstance(west, Message)
        assert isinstance(east, Message)
        for message in (west, east) if valid_seconds > 0 else (east,):
            await app.sender.send(message.address, make_reply(message.text))
        if valid_seconds < 0:
            await simulator.fail("token_expired", method="chat.postMessage")
            with pytest.raises(Unauthorized, match=f"install the app again in workspace {WEST}"):
                await app.sender.send(west.address, make_reply("too late"))
            await simulator.fail("team_access_not_granted", method="chat.postMessage")
            with pytest.raises(Unauthorized, match=r"team_access_not_granted$"):
                await app.sender.send(west.address, make_reply("not granted"))
    assert simulator.messages()[-1].text == "C0EAST"


@pytest.mark.parametrize("error", ["internal_error", "ratelimited", "service_unavailable"])
async def test_a_refusal_to_replace_a_token_that_passes_is_tried_again(
    simulator: Simulator, app: Connection, error: str
) -> None:
    """An expired token is replaced at the next attempt, and until then nothing counts as sent."""
    simulator.server.installations.expires_in = -60
    await install(app, simulator, EAST)
    simulator.server.installations.expires_in = 43_200
    address = Address(channel="chn_contract", room="C0EAST", extras={"team": EAST})
    await simulator.fail(error, method="oauth.v2.access")
    with pytest.raises(Unreachable):
        await app.sender.send(address, make_reply("hello"))
    await app.sender.send(address, make_reply("hello"))
    assert (simulator.server.installations.rotations, len(simulator.messages())) == (1, 1)


async def test_the_replica_that_comes_second_waits_for_the_next_token(
    simulator: Simulator, app: Connection, notes: MemoryChannelState
) -> None:
    """An expired token is replaced by two at once: the refused one has nothing to report to an operator."""
    simulator.server.installations.expires_in = -60
    await install(app, simulator, EAST)
    simulator.server.installations.expires_in = 43_200
    address = Address(channel="chn_contract", room="C0EAST", extras={"team": EAST})
    await simulator.answer_late(0.3, method="oauth.v2.access")
    async with open_connection(plugin, simulator.app_settings(), notes) as other:
        sends = [one.sender.send(address, make_reply("hello")) for one in (app, other)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert sum(isinstance(result, SentMessage) for result in results) == 1
        assert sum(isinstance(result, Unreachable) for result in results) == 1
        for one in (app, other):
            await one.sender.send(address, make_reply("again"))
    assert simulator.server.installations.rotations == 1


async def test_a_send_that_is_cancelled_loses_no_new_token(simulator: Simulator, app: Connection) -> None:
    """Slack has used up the refresh token by then, and names the next one in this answer alone."""
    simulator.server.installations.expires_in = -60
    await install(app, simulator, EAST)
    simulator.server.installations.expires_in = 43_200
    address = Address(channel="chn_contract", room="C0EAST", extras={"team": EAST})
    await simulator.answer_late(0.2, method="oauth.v2.access")
    sending = asyncio.create_task(app.sender.send(address, make_reply("too late")))
    await simulator.wait_until(lambda: simulator.server.installations.rotations == 1)
    sending.cancel()
    await app.sender.send(address, make_reply("hello"))
    assert [one.text for one in simulator.messages()] == ["hello"]
    assert simulator.server.installations.rotations == 1


class _FailingSecrets(MemoryChannelSecrets):
    """Secrets whose database does not answer while `is_down`."""

    is_down = False

    async def set(self, name: str, secret: str | None) -> None:
        """Store a secret, or fail."""
        if self.is_down:
            raise ConnectionError("the database does not answer")
        await super().set(name, secret)


async def test_a_new_token_that_cannot_be_stored_is_kept_until_it_can(simulator: Simulator) -> None:
    """The refresh token before it is used up: without it the app would have to be installed again."""
    notes, secrets = MemoryChannelState(), _FailingSecrets()
    notes.secrets = secrets
    simulator.world.room("C0EAST").team = EAST
    address = Address(channel="chn_contract", room="C0EAST", extras={"team": EAST})
    async with open_connection(plugin, simulator.app_settings(), notes) as app:
        simulator.server.installations.expires_in = -60
        await install(app, simulator, EAST)
        simulator.server.installations.expires_in = 43_200
        secrets.is_down = True
        with pytest.raises(ConnectionError):
            await app.sender.send(address, make_reply("hello"))
        secrets.is_down = False
        await app.sender.send(address, make_reply("hello"))
    async with open_connection(plugin, simulator.app_settings(), notes) as app:
        await app.sender.send(address, make_reply("again"))
    assert (simulator.server.installations.rotations, len(simulator.messages())) == (1, 2)


async def test_a_valid_token_is_used_while_slack_replaces_none(simulator: Simulator, app: Connection) -> None:
    """Not every call tries to replace it, which would hold up all of them."""
    simulator.server.installations.expires_in = 60
    await install(app, simulator, EAST)
    address = Address(channel="chn_contract", room="C0EAST", extras={"team": EAST})
    await simulator.fail(status=500, method="oauth.v2.access", times=100)
    for number in range(3):
        await app.sender.send(address, Reply(text="hello", key=f"dlv_{number}.0"))
    assert len(simulator.messages()) == 3
    assert [method for method, _ in simulator.calls].count("oauth.v2.access") == 2  # the first installed it
