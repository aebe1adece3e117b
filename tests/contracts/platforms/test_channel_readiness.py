"""A channel that has not received for a minute is reported as stalled, until it receives again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from channel_replicas import ChannelReplicas, make_replicas, until
from channels.pancake.simulator import Simulator as PancakeSimulator
from channels.port import ChannelPlugin, WebhookRequest
from channels.registry import built_in
from channels.slack.simulator import Simulator as SlackSimulator
from channels.telegram.simulator import Simulator
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.rig import ChannelRig
from delivery.database.engine import Database
from gateway.accounts.vault import open_vault
from gateway.ingress.channel_health import GRACE_SECONDS, STEADY_SECONDS
from gateway.records.records import Records
from migrated import migrated_sqlite


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite: no database of another kind changes anything here."""
    return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"


@pytest.fixture
async def channel_replicas(
    database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: ChannelRig
) -> ChannelReplicas:
    """Return a setup with a channel of each installed kind."""
    return await make_replicas(database, tmp_path, plugin.name, rig.settings())


async def test_an_interruption_is_reported_and_only_a_long_one_is_a_stall(
    channel_replicas: ChannelReplicas, rig: ChannelRig
) -> None:
    """Within the grace a channel has a reason; after it, it is stalled; then it recovers."""
    channel = channel_replicas.channel
    async with channel_replicas.run_replica() as board:
        await until(lambda: not board.starting())
        channel_replicas.now += STEADY_SECONDS

        async def check_while_interrupted() -> None:
            """Check in one step of the event loop: the channel may recover in the next one."""
            await until(lambda: board.status(channel)[1], pause=0)
            assert "not receiving: " in board.status(channel)[1]
            assert (board.count_by_state()["stalled"], board.starting()) == (0, [])
            channel_replicas.now += GRACE_SECONDS + 1
            assert board.status(channel)[0] == "stalled"
            assert board.status(channel)[1]

        async with asyncio.TaskGroup() as group:
            group.create_task(check_while_interrupted())
            await rig.cut_receiving()
            await rig.say("so that a poll that waits ends")
        await until(lambda: "not receiving" not in board.status(channel)[1])
        assert board.count_by_state()["stalled"] == 1, "a moment is not enough"
        channel_replicas.now += STEADY_SECONDS
        assert board.count_by_state()["stalled"] == 0


async def test_a_revoked_token_is_a_stall_after_the_grace(
    channel_replicas: ChannelReplicas, rig: ChannelRig
) -> None:
    """The reason is reported, without a secret."""
    async with channel_replicas.run_replica() as board:
        await until(lambda: not board.starting())
        await rig.revoke()
        await rig.cut_receiving()
        await rig.say("so that a poll that waits ends")
        await until(lambda: board.count_by_state()["trouble"])
        channel_replicas.now += GRACE_SECONDS - 1
        assert board.count_by_state()["stalled"] == 0
        channel_replicas.now += 2
        state, why = board.status(channel_replicas.channel)
        assert state == "stalled"
        assert why
        assert not [secret for secret in rig.secrets if secret in why]


async def test_a_standby_or_a_sender_is_not_stalled(channel_replicas: ChannelReplicas) -> None:
    """The other replica receives; when it ends, the waiting one takes over."""
    async with channel_replicas.run_replica() as first:
        await until(lambda: first.count_by_state()["receiving"])
        async with (
            channel_replicas.run_replica(receives=False) as sender,
            channel_replicas.run_replica() as second,
        ):
            await until(lambda: second.count_by_state()["standby"] and sender.count_by_state()["open"])
            channel_replicas.now += 10 * GRACE_SECONDS
            assert [board.count_by_state()["stalled"] for board in (first, second, sender)] == [0, 0, 0]
            assert sender.status(channel_replicas.channel) == ("open", "")


async def test_a_paused_channel_only_sends_until_it_is_resumed(channel_replicas: ChannelReplicas) -> None:
    """It blocks no start and is no stall, and its platform's webhooks are refused for now."""
    channel = channel_replicas.channel
    async with channel_replicas.run_replica() as board:
        await until(lambda: board.count_by_state()["receiving"])
        await channel_replicas.set_paused(board, is_paused=True)
        await until(lambda: board.status(channel) == ("paused", "") and board.get_bot(channel) is not None)
        channel_replicas.now += 10 * GRACE_SECONDS
        assert (board.count_by_state()["paused"], board.count_by_state()["stalled"]) == (1, 0)
        assert board.starting() == []
        answer = await board.receive(channel, WebhookRequest(headers={}, body=b"{}"))
        assert answer is not None
        assert answer.status == 503
        await channel_replicas.set_paused(board, is_paused=False)
        await until(lambda: board.count_by_state()["receiving"])


async def test_a_post_while_a_changed_channel_is_opened_again_is_repeated(
    channel_replicas: ChannelReplicas,
) -> None:
    """It gets 503, as long as the channel exists."""
    channel, post = channel_replicas.channel, WebhookRequest(headers={}, body=b"{}")
    async with channel_replicas.run_replica() as board:
        await until(lambda: board.count_by_state()["receiving"])
        await channel_replicas.set_paused(board, is_paused=True)
        await until(lambda: board.status(channel)[0] == "closed", pause=0)
        answer = await board.receive(channel, post)
        assert answer is not None
        assert answer.status == 503
        assert await board.receive("chn_unknown", post) is None


async def test_a_second_channel_of_a_bot_is_in_no_standby(database: Database, tmp_path: Path) -> None:
    """Its status says so, and no replica will take it over: it is no standby."""
    plugin = built_in()["pancake"]
    assert plugin.simulate is not None
    async with plugin.simulate() as (platform, _):
        settings = cast("PancakeSimulator", platform).settings()
        replicas = await make_replicas(database, tmp_path, "pancake", settings)
        async with replicas.run_replica() as board:
            await until(lambda: board.count_by_state()["receiving"])
            await replicas.add(board, {"kind": "pancake", "agent": "main", "settings": settings})
            await until(lambda: board.count_by_state()["trouble"])
            assert (board.count_by_state()["receiving"], board.count_by_state()["standby"]) == (1, 0)


async def test_two_pollers_of_one_bot_are_a_stall(database: Database, tmp_path: Path) -> None:
    """Telegram cuts each of them off whenever the other asks: what arrives in between does not count."""
    plugin = built_in()["telegram"]
    assert plugin.simulate is not None
    async with plugin.simulate() as (simulator, _):
        settings = cast("Simulator", simulator).settings
        environment = await make_replicas(
            database, tmp_path, "telegram", settings(poll_seconds=5, conflict_seconds=0)
        )
        async with environment.run_replica() as board:
            await until(lambda: board.count_by_state()["receiving"])
            async with (
                open_connection(plugin, settings(poll_seconds=5, conflict_seconds=600)) as other,
                receiving(other, UpdateRecorder()),
            ):
                await until(lambda: "Conflict" in board.status(environment.channel)[1])
                environment.now += GRACE_SECONDS + 1
                await until(lambda: board.status(environment.channel)[0] == "stalled")


async def test_an_error_for_an_operator_is_retried_more_and_more_slowly(
    database: Database, tmp_path: Path
) -> None:
    """It is logged as a warning once, messages can be sent, and a changed record is tried at once."""
    plugin = built_in()["slack"]
    assert plugin.simulate is not None
    async with plugin.simulate() as (platform, _):
        simulator = cast("SlackSimulator", platform)
        replicas = await make_replicas(database, tmp_path, "slack", simulator.settings())
        await simulator.fail("invalid_auth", times=4, method="apps.connections.open")
        with capture_logs() as logs:
            async with replicas.run_replica(operator_retry_delays=(0.0, 0.0, 0.0, 3600.0)) as board:
                await until(lambda: [line for line in logs if line.get("retry_in") == 3600.0])
                assert [line["retry_in"] for line in logs if "retry_in" in line] == [0.0, 0.0, 0.0, 3600.0]
                assert len([line for line in logs if line["event"] == "channel.disconnected"]) == 1
                assert board.status(replicas.channel)[0] == "trouble"
                assert board.get_bot(replicas.channel) is not None
                await replicas.set_paused(board, is_paused=True)
                await replicas.set_paused(board, is_paused=False)
                await until(lambda: board.count_by_state()["receiving"])


async def test_channels_are_loaded_soon_after_the_database_answers(tmp_path: Path) -> None:
    """A database that does not answer at the start delays the channels by a second, not by half a minute."""
    made, place = tmp_path / "made", tmp_path / "later"
    made.mkdir()
    await migrated_sqlite(made / "gateway.db")
    database = Database(f"sqlite+aiosqlite:///{place / 'gateway.db'}")
    replicas = ChannelReplicas(database, Records(open_vault(tmp_path)), channel="")
    with capture_logs() as logs:
        async with replicas.run_replica() as board:
            await until(lambda: [line for line in logs if line["event"] == "channels.database_unavailable"])
            answer = await board.receive("chn_unknown", WebhookRequest(headers={}, body=b"{}"))
            assert answer is not None, "it may exist"
            assert answer.status == 503
            made.rename(place)
            await until(lambda: board.is_loaded)
    await database.close()
