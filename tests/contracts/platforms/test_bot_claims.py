"""Of several channels with one bot the first that was created receives, on every platform."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from channel_replicas import ChannelReplicas, make_replicas, until
from channels.message import Message
from channels.port import ChannelPlugin, WebhookRequest
from channels.registry import built_in
from channels.slack.simulator.run import simulate as simulate_slack
from channels.telegram.simulator import simulate as simulate_telegram
from channels.testing.rig import WebhookRig
from channels.zalo.simulator import simulate as simulate_zalo
from channels.zalo.simulator.simulator import oa_headers
from delivery.database.engine import Database
from gateway.ingress.bot_claims import BotClaims
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.store.accounts.records import Record

DIRECT = "D0ADA"


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite: no database of another kind changes anything here."""
    return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"


def _texts(replicas: ChannelReplicas, name: str) -> list[str]:
    found = replicas.received[name].updates if name in replicas.received else []
    return [update.text for update in found if isinstance(update, Message)]


def _others_settings(plugin: ChannelPlugin, rig: WebhookRig) -> dict[str, Any]:
    """Return settings for the same bot; where only one record may poll with a token, by webhook."""
    may_poll = not plugin.connection_key(plugin.settings(**rig.settings()))
    return rig.settings() if may_poll else rig.webhook_settings()


async def _post(board: ChannelSupervisor, channel: str, request: WebhookRequest) -> int:
    answer = await board.receive(channel, request)
    assert answer is not None
    return answer.status


async def test_one_channel_of_a_bot_receives(
    database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: WebhookRig
) -> None:
    """The other one says why it does not, and receives what is written once it is the first."""
    replicas = await make_replicas(database, tmp_path, plugin.name, rig.settings())
    config = {"kind": plugin.name, "agent": "main", "settings": _others_settings(plugin, rig)}
    async with replicas.run_replica() as board:
        await until(lambda: board.count_by_state()["receiving"])
        with capture_logs() as logs:
            further = await replicas.add(board, config)
            await until(lambda: [line for line in logs if line["event"] == "channel.refused"])
        assert board.status(further.id)[0] == "trouble"
        assert "channel 'bot' is the same bot or page" in board.status(further.id)[1]
        assert [one.subject for one in await board.probe(further) if not one.ok] == ["receiving"]
        await rig.say("one")
        await until(lambda: _texts(replicas, "bot") == ["one"])
        await replicas.patch(board, {"settings": {"context_messages": 1}})
        await until(lambda: board.status(replicas.channel)[0] != "receiving", pause=0)
        assert board.status(further.id)[0] == "trouble", "a change of the first hands nothing over"
        await until(lambda: board.status(replicas.channel)[0] == "receiving")
        assert board.status(further.id)[0] == "trouble"
        await rig.say("two")
        await until(lambda: _texts(replicas, "bot") == ["one", "two"])
        await replicas.set_paused(board, is_paused=True)
        await until(lambda: board.status(further.id)[0] == "receiving")
        if config["settings"] == rig.settings():
            await rig.say("three")
        else:
            await _post(board, further.id, rig.webhook_request(rig.update("three")))
        await until(lambda: "three" in _texts(replicas, "further"))
        assert _texts(replicas, "further") == ["three"], "the first has received the others"


async def test_posts_to_the_other_channel_of_a_bot_are_refused(
    database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: WebhookRig
) -> None:
    """They get 503, so that the platform repeats them, and are accepted once that channel is the first."""
    replicas = await make_replicas(database, tmp_path, plugin.name, rig.webhook_settings())
    config = {"kind": plugin.name, "agent": "main", "settings": rig.webhook_settings()}
    async with replicas.run_replica() as board:
        await until(lambda: board.count_by_state()["receiving"])
        further = await replicas.add(board, config)
        await until(lambda: board.get_bot(further.id) is not None)
        post = rig.webhook_request(rig.update("hello"))
        assert await _post(board, further.id, post) == 503
        assert await _post(board, replicas.channel, post) < 300
        await replicas.set_paused(board, is_paused=True)
        await until(lambda: board.status(further.id)[0] == "receiving")
        assert await _post(board, further.id, rig.webhook_request(rig.update("again"))) < 300


async def test_the_first_channel_receives_after_every_start(
    database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: WebhookRig
) -> None:
    """Which one connects first does not matter."""
    replicas = await make_replicas(database, tmp_path, plugin.name, rig.webhook_settings())
    config = {"kind": plugin.name, "agent": "main", "settings": rig.webhook_settings()}
    async with replicas.run_replica() as board:
        await until(lambda: board.count_by_state()["receiving"])
        further = await replicas.add(board, config)
    for _ in range(3):
        async with replicas.run_replica() as board:
            await until(lambda: not board.starting())
            assert board.status(further.id)[0] == "trouble"
            assert board.status(replicas.channel)[0] == "receiving"


async def test_a_channel_whose_token_is_refused_claims_no_bot(
    database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: WebhookRig
) -> None:
    """So a record with a wrong token, maybe of another account, keeps the bot from no one."""
    token = rig.unknown_sender
    replicas = await make_replicas(database, tmp_path, plugin.name, rig.settings(token=token))
    config = {"kind": plugin.name, "agent": "main", "settings": _others_settings(plugin, rig)}
    async with replicas.run_replica() as board:
        further = await replicas.add(board, config)
        await until(lambda: board.status(further.id)[0] == "receiving")
        assert "same bot" not in board.status(replicas.channel)[1]
        assert board.status(replicas.channel)[0] == "trouble"


async def test_an_official_account_of_two_apps_is_one_bot(database: Database, tmp_path: Path) -> None:
    """Zalo posts each message to both apps; only one channel answers."""
    plugin = built_in()["zalo"]
    async with simulate_zalo() as platform:
        settings = platform.settings(platform="oa", access_token=platform.access)
        replicas = await make_replicas(database, tmp_path, plugin.name, settings)
        other = {**settings, "app_id": "990002", "signature": "hmac"}
        async with replicas.run_replica() as board:
            await until(lambda: board.count_by_state()["receiving"])
            further = await replicas.add(board, {"kind": "zalo", "agent": "main", "settings": other})
            await until(lambda: board.status(further.id)[0] == "trouble")
            body = platform.oa_event("hello")
            headers = {name.lower(): value for name, value in oa_headers(body, scheme="hmac").items()}
            assert await _post(board, further.id, WebhookRequest(headers=headers, body=body)) == 503


async def test_a_channel_that_has_never_connected_claims_no_bot(
    database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: WebhookRig
) -> None:
    """Only the platform can say whether a record, maybe of another account, has the bot's token."""
    replicas = await make_replicas(database, tmp_path, plugin.name, rig.settings())
    async with replicas.run_replica() as board:
        await until(lambda: board.count_by_state()["receiving"])
        further = await replicas.add(
            board, {"kind": plugin.name, "agent": "main", "settings": _others_settings(plugin, rig)}
        )
        await until(lambda: "same bot" in board.status(further.id)[1])
        await rig.stop()
        await replicas.patch(board, {"settings": {"context_messages": 1}})
        await until(lambda: "same bot" not in board.status(further.id)[1])


def test_a_slack_app_is_named_by_its_secret_too() -> None:
    """Its client id is public, and nothing proves it when a channel is opened."""
    plugin = built_in()["slack"]
    settings: dict[str, Any] = {"mode": "http", "client_id": "1.2", "signing_secret": "a-signing-secret"}
    own, others = (plugin.settings(**settings | {"client_secret": secret}) for secret in ("own", "guessed"))
    assert plugin.account(own) != plugin.account(others)


async def test_a_channel_that_cannot_receive_yields_to_the_next(database: Database, tmp_path: Path) -> None:
    """Its bot token is valid, so that it sends; once its settings are changed it is the first again."""
    plugin = built_in()["slack"]
    async with simulate_slack() as platform:
        good = platform.settings()
        replicas = await make_replicas(database, tmp_path, "slack", {**good, "app_token": "xapp-1-wrong"})
        async with replicas.run_replica() as board:
            await until(lambda: board.status(replicas.channel)[0] == "trouble")
            further = await replicas.add(board, {"kind": plugin.name, "agent": "main", "settings": good})
            await until(lambda: board.status(further.id)[0] == "receiving")
            await until(lambda: "same bot" in board.status(replicas.channel)[1])
            state, why = board.status(replicas.channel)
            assert (state, "apps.connections.open: invalid_auth" in why, "created first" in why) == (
                "trouble",
                True,
                False,
            )
            await platform.say(DIRECT, "one")
            await until(lambda: _texts(replicas, "further") == ["one"])
            by_posts = platform.settings(mode="http", signing_secret="a-signing-secret-of-slack")
            await replicas.patch(board, {"settings": by_posts})
            await until(lambda: board.status(replicas.channel)[0] == "receiving")
            await until(lambda: board.status(further.id)[0] == "trouble")
            assert "created first" in board.status(further.id)[1]


async def test_a_channel_whose_bot_is_connected_elsewhere_yields_to_none(
    database: Database, tmp_path: Path
) -> None:
    """The next channel is the same bot and would fail as well, and a short conflict hands over nothing."""
    async with simulate_telegram() as platform:
        first = platform.settings(conflict_seconds=0, poll_seconds=1)
        replicas = await make_replicas(database, tmp_path, "telegram", first)
        posted = {"webhook_url": "https://bot.example/", "webhook_secret": "a-webhook-secret"}
        other = platform.settings(mode="webhook", **posted)
        async with replicas.run_replica() as board:
            await until(lambda: board.status(replicas.channel)[0] == "receiving")
            further = await replicas.add(board, {"kind": "telegram", "agent": "main", "settings": other})
            await until(lambda: "created first" in board.status(further.id)[1])
            with capture_logs() as logs:
                await platform.fail(409, times=2, method="getUpdates", description="Conflict: terminated")
                await until(lambda: [line for line in logs if line["event"] == "channel.disconnected"])
            await until(lambda: board.status(replicas.channel)[0] == "receiving")
            assert "created first" in board.status(further.id)[1]


def test_channels_that_all_cannot_receive_take_turns() -> None:
    """The one that has tried last is the last to try again."""
    claims = BotClaims()
    first, second = (_record(number) for number in (1, 2))
    for record in (first, second):
        claims.claim(record, "slack:B")
    assert (claims.rival("chn_1"), claims.rival("chn_2")) == (None, "chn_1")
    claims.yield_to_others("chn_1", "refused")
    assert (claims.rival("chn_1"), claims.rival("chn_2")) == ("chn_2", None)
    claims.yield_to_others("chn_2", "refused too")
    assert (claims.rival("chn_1"), claims.rival("chn_2")) == (None, "chn_1")
    claims.end_yielding("chn_2")
    assert (claims.rival("chn_1"), claims.why_yielded("chn_1")) == ("chn_2", "refused")
    claims.release("chn_2")
    assert claims.rival("chn_1") is None, "the only one tries again"


def _record(number: int) -> Record:
    return Record(
        id=f"chn_{number}",
        account="acc_1",
        kind="channel",
        name=f"channel-{number}",
        config={},
        created_at=datetime(2026, 1, number, tzinfo=UTC),
        updated_at=datetime(2026, 1, number, tzinfo=UTC),
    )
