"""What the GitHub adapter does beyond the contract: places, limits, permissions, tokens, catch-up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import pytest
from gidgethub import BadRequest

from channels.errors import (
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Undeliverable,
)
from channels.github import plugin
from channels.github.errors import translate_error
from channels.github.simulator import Simulator, simulate
from channels.github.simulator.world import ADA, BOT, ROOM
from channels.inbox.polling import load_in_order
from channels.message import Address, Message, Reply, RoomReopened, StatusReaction
from channels.port import Connection
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from channels.testing.sending import make_reply
from egress.guard import TRUSTED

LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run a simulated GitHub."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def app(platform: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that polls."""
    async with open_connection(plugin, platform.settings()) as connection:
        yield connection


def address(thread: str = "1", **extras: str) -> Address:
    """Return the address of a thread of the repository."""
    return Address(channel=CHANNEL, room=ROOM, thread=thread, extras=extras)


async def received(platform: Simulator, app: Connection, kind: str, number: int, **others: int) -> Message:
    """Let a person comment, and return the comment as the app receives it."""
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await platform.comment(kind, number, "@dovecote hello", **others)
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    return update


@pytest.mark.parametrize(
    ("kind", "number"),
    [("issue_comment", 1), ("issue_comment", 2), ("review_comment", 2), ("discussion_comment", 3)],
)
async def test_an_answer_an_edit_and_a_reaction_stay_in_the_thread(
    platform: Simulator, app: Connection, kind: str, number: int
) -> None:
    """In issues, pull requests, reviews and discussions all of it lands in the thread of the mention."""
    question = await received(platform, app, kind, number)
    reply, since = make_reply("**yes**"), datetime.now(UTC) - timedelta(minutes=5)
    sent = await app.sender.send(question.address, reply)
    assert await app.sender.find(question.address, reply.key, since=since) == sent
    assert await app.sender.find(question.address, "dlv_other", since=since) is None
    await app.sender.edit(question.address, sent.platform_id, make_reply("yes, *indeed*"))
    (shown,) = platform.messages()
    assert (shown.thread, shown.text) == (question.address.thread, "yes, indeed")
    entry = next(one for one in platform.world.entries.values() if one.body == "@dovecote hello")
    for reaction, expected in (
        (StatusReaction.SEEN, ["eyes"]),
        (StatusReaction.DONE, ["rocket"]),
        (None, []),
    ):
        await app.sender.react(question.address, question.platform_id, reaction)
        assert [content for content, _ in entry.reactions.values()] == expected


async def test_a_reply_in_a_discussion_is_answered_in_the_same_thread(
    platform: Simulator, app: Connection
) -> None:
    """GitHub refuses a reply to a reply, so the answer goes to the comment above both."""
    above = platform.world.add("discussion_comment", 3, "What do doves eat?")
    question = await received(platform, app, "discussion_comment", 3, parent=above.id)
    await app.sender.send(question.address, make_reply("maize"))
    assert question.address.thread == f"discussions/3/{above.id}"
    assert [one.thread for one in platform.messages()] == [question.address.thread]


@pytest.mark.parametrize(
    ("kind", "number", "thread"), [("issue", 7, "7"), ("discussion", 8, "discussions/8")]
)
async def test_a_new_thread_is_answered_in_it(
    platform: Simulator, app: Connection, kind: str, number: int, thread: str
) -> None:
    """A mention in an issue's or a discussion's own text opens a conversation with its title."""
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await platform.open_thread(kind, number, "The loft is full", "@dovecote why?")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    assert (update.text, update.mentions_bot, update.address.thread) == (
        "The loft is full\n\nwhy?",
        True,
        thread,
    )
    await app.sender.send(update.address, make_reply("because"))
    await app.sender.react(update.address, update.platform_id, StatusReaction.SEEN)
    assert (platform.messages()[0].text, platform.messages()[0].thread is not None) == ("because", True)


async def test_an_exhausted_primary_limit_waits_for_its_reset(platform: Simulator, app: Connection) -> None:
    """The delay comes from x-ratelimit-reset and holds for the whole app."""
    await app.sender.send(address(), make_reply("first"))
    platform.api.remaining, platform.api.reset_at = 0, int(time.time()) + 900
    with pytest.raises(RateLimited) as caught:
        await app.sender.send(address(), make_reply("second"))
    assert caught.value.scope == "account"
    assert 800 < caught.value.retry_after <= 900


@pytest.mark.parametrize("status", [403, 429])
async def test_a_secondary_limit_without_a_time_waits_a_minute(
    platform: Simulator, app: Connection, status: int
) -> None:
    """GitHub asks for at least a minute then."""
    platform.fail("send", status, {"message": "You have exceeded a secondary rate limit."})
    with pytest.raises(RateLimited) as caught:
        await app.sender.send(address(), make_reply("too fast"))
    assert (caught.value.retry_after, platform.messages()) == (60, [])


@pytest.mark.parametrize(
    "error",
    [
        {"type": "RATE_LIMITED", "message": "API rate limit exceeded for installation ID 77001."},
        {"type": "RATE_LIMIT", "code": "graphql_rate_limit", "message": "API rate limit already exceeded."},
        {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."},
    ],
)
@pytest.mark.parametrize(
    ("headers", "wait"),
    [({}, 60), ({"Retry-After": "240"}, 240), ({"x-ratelimit-remaining": "0"}, 900)],
)
async def test_a_limit_of_graphql_waits_as_its_headers_say(
    platform: Simulator, app: Connection, error: dict[str, str], headers: dict[str, str], wait: int
) -> None:
    """GitHub answers these with the status 200; in a discussion the answer is neither lost nor doubtful."""
    target = address("discussions/3", discussion=platform.world.thread(3).node_id)  # type: ignore[union-attr]
    reset = {"x-ratelimit-reset": str(int(time.time()) + 900)}
    platform.fail("send", 200, {"data": None, "errors": [error]}, headers={**reset, **headers})
    with pytest.raises(RateLimited) as caught:
        await app.sender.send(target, make_reply("too fast"))
    assert (caught.value.scope, platform.messages()) == ("account", [])
    assert caught.value.retry_after == pytest.approx(wait, abs=30)


@pytest.mark.parametrize(
    ("thread", "permission"), [("1", "issues"), ("2", "pull_requests"), ("discussions/3", "discussions")]
)
async def test_a_missing_permission_is_named(
    platform: Simulator, app: Connection, thread: str, permission: str
) -> None:
    """The error and `channels test` both name the permission."""
    platform.world.permissions[permission] = "read"
    discussion = platform.world.thread(3)
    assert discussion is not None
    with pytest.raises(NotPermitted, match=f"{permission}=write|Discussions: write"):
        await app.sender.send(address(thread, discussion=discussion.node_id), make_reply("hello"))
    findings = await plugin.probe(plugin.settings(**platform.settings()), TRUSTED)
    bad = [one for one in findings if not one.ok]
    assert {one.subject for one in bad} == {"permissions", "installation octo"}
    assert all(f"{permission}: write" in one.detail and one.remedy for one in bad)


async def test_a_probe_names_what_else_is_missing(platform: Simulator) -> None:
    """Events that are not subscribed, a suspended installation, and none at all."""
    platform.api.events.remove("discussion_comment")
    platform.world.suspended = True
    bad = [one for one in await plugin.probe(plugin.settings(**platform.settings()), TRUSTED) if not one.ok]
    assert [one.detail for one in bad] == ["missing: discussion_comment", "it is suspended"]
    platform.world.installed = False
    bad = [one for one in await plugin.probe(plugin.settings(**platform.settings()), TRUSTED) if not one.ok]
    assert "installed nowhere" in [one.detail for one in bad]


async def test_only_a_lost_repository_is_given_up(platform: Simulator, app: Connection) -> None:
    """A locked or deleted thread refuses its message; the repository's other threads live."""
    await platform.lock(1)
    for thread, refusal in (("1", NotPermitted), ("404", Rejected), ("nowhere", Rejected)):
        with pytest.raises(refusal):
            await app.sender.send(address(thread), make_reply("hello"))
    await platform.lock(1, locked=False)
    await app.sender.send(address(), make_reply("hello"))
    platform.world.installed = False
    platform.api.tokens.clear()
    with pytest.raises(Undeliverable):
        await app.sender.send(address(), make_reply("hello"))


async def test_an_archived_repository_is_open_again_later(platform: Simulator, app: Connection) -> None:
    """What it refuses waits for a person, and the event that it can be written in is received."""
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await platform.archive()
        with pytest.raises(NotPermitted, match=r"archived so is read-only.*unarchive the repository"):
            await app.sender.send(address(), make_reply("hello"))
        await platform.archive(archived=False)
        (update,) = await recorder.wait(1)
    assert isinstance(update, RoomReopened)
    assert update.address == replace(address(), thread=None)


@pytest.mark.parametrize(
    "words",
    [
        "The `octo` organization has an IP allow list enabled, and your IP address is not permitted here",
        "Repository access blocked",
        "User is blocked",
    ],
)
def test_what_github_forbids_is_no_refused_content(words: str) -> None:
    """Content is refused with the status 422; after a 403 the answer waits for an operator."""
    error = translate_error(BadRequest(HTTPStatus.FORBIDDEN, words), what="POST /comments")
    assert isinstance(error, NotPermitted)
    assert words in str(error)


@pytest.mark.parametrize(("kind", "number"), [("review_comment", 2), ("discussion_comment", 3)])
async def test_a_thread_whose_first_comment_was_deleted_is_answered_above_it(
    platform: Simulator, app: Connection, kind: str, number: int
) -> None:
    """GitHub refuses a reply to it; the pull request or the discussion in which it was accepts the answer."""
    question = await received(platform, app, kind, number)
    root = next(one for one in platform.world.entries.values() if one.body == "@dovecote hello")
    del platform.world.entries[root.id]
    with pytest.raises(ThreadUndeliverable, match="what began the thread is gone"):
        await app.sender.send(question.address, make_reply("here"))
    place = plugin.limits.public_place(question.address)
    assert place is not None
    await app.sender.send(place, make_reply("above"))
    (answer,) = platform.messages()
    assert (answer.text, platform.world.entries[int(answer.id)].parent) == ("above", None)


async def test_a_refused_token_is_replaced_once(platform: Simulator, app: Connection) -> None:
    """An installation's token that ended early costs no message."""
    await app.sender.send(address(), make_reply("one"))
    platform.api.tokens.clear()
    await app.sender.send(address(), make_reply("two"))
    assert [one.text for one in platform.messages()] == ["one", "two"]
    assert len(platform.api.tokens) == 1


async def test_a_redelivery_has_the_key_of_the_first(platform: Simulator, app: Connection) -> None:
    """The key is X-GitHub-Delivery, so the gateway takes both for one message."""
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await platform.say(ROOM, "once")
        await platform.redeliver()
        first, second = await recorder.wait(2)
    assert first.key == second.key == platform.api.deliveries[0].guid


async def test_posts_during_a_gap_are_caught_up(platform: Simulator) -> None:
    """GitHub does not repeat a failed post: it is read from the log after the restart, and no other one."""
    settings = platform.settings(mode="webhook", webhook_secret="a-webhook-secret", catch_up_seconds=0.05)
    state, recorder = MemoryChannelState(), UpdateRecorder()
    async with open_connection(plugin, settings, state):
        pass
    for text in ("missed", "arrived", "missed too"):
        await platform.say(ROOM, text)
    log = platform.api.deliveries
    log[:] = [replace(one, delivered_at=LONG_AGO) for one in log]
    log[1] = replace(log[1], status_code=200)
    async with open_connection(plugin, settings, state) as second, receiving(second, recorder):
        updates = await recorder.wait(2)
        await platform.wait_until(lambda: state.values["deliveries:position"] == str(log[-1].id))
    assert [one.text for one in updates if isinstance(one, Message)] == ["missed", "missed too"]


async def test_a_delivery_whose_content_is_lost_stops_no_later_one(platform: Simulator) -> None:
    """The log lists it and answers 404: it is skipped, and the position moves on."""
    state, recorder = MemoryChannelState(), UpdateRecorder()
    async with open_connection(plugin, platform.settings(), state):
        pass
    for text in ("first", "lost", "last"):
        await platform.say(ROOM, text)
    platform.api.lost.add(platform.api.deliveries[1].id)
    async with open_connection(plugin, platform.settings(), state) as app, receiving(app, recorder):
        updates = await recorder.wait(2)
    assert [one.text for one in updates if isinstance(one, Message)] == ["first", "last"]


async def test_what_was_read_before_an_error_is_received() -> None:
    """The rows before the one that fails are stored, so that a rate limit in their middle stops nothing."""
    loaded: list[int] = []

    async def load(row: int) -> int:
        if row == 3:
            raise RateLimited(60.0)
        loaded.append(row)
        return row

    assert await load_in_order([1, 2, 3, 4], load) == [1, 2]
    with pytest.raises(RateLimited):
        await load_in_order([3, 4], load)


async def test_the_gateway_registers_its_url(platform: Simulator) -> None:
    """Address and secret of the app's webhook are set by the gateway."""
    url, secret = "http://127.0.0.1:9/channels/chn_1/inbound", "a-webhook-secret"
    settings = platform.settings(mode="webhook", webhook_secret=secret, webhook_url=url)
    async with open_connection(plugin, settings) as connection, receiving(connection, UpdateRecorder()):
        await platform.wait_until(lambda: bool(platform.api.hook["url"]))
    assert (platform.api.hook["url"], platform.api.hook["secret"]) == (url, secret)


async def test_no_person_is_notified_and_no_tag_vanishes(platform: Simulator, app: Connection) -> None:
    """Mentions and tags in a model's text are text; in code everything stays as it is."""
    text = "@ada, use Vec<T> and `@dataclass <b>`\n\n```\n@ada <b>\n```\n<https://x.test/>"
    await app.sender.send(address(), Reply(text=text, key="dlv_1.0"))
    (shown,) = platform.messages()
    expected = "@&#8203;ada, use Vec&lt;T> and `@dataclass <b>`\n\n```\n@ada <b>\n```\n<https://x.test/>"
    assert shown.raw == f"{expected}\n\n<!-- dovecote dlv_1.0 -->"


async def test_another_persons_comment_with_a_key_is_not_found(platform: Simulator, app: Connection) -> None:
    """Only the app's own comments count, whatever others copy into theirs."""
    platform.world.add("issue_comment", 1, "<!-- dovecote dlv_9.0 -->", user=ADA)
    since = datetime.now(UTC) - timedelta(minutes=5)
    assert await app.sender.find(address(), "dlv_9.0", since=since) is None
    platform.world.add("issue_comment", 1, "<!-- dovecote dlv_9.0 -->", user=BOT)
    assert await app.sender.find(address(), "dlv_9.0", since=since) is not None


@pytest.mark.parametrize(
    "key", ["garbage", "-----BEGIN RSA PRIVATE KEY-----\nAA==\n-----END RSA PRIVATE KEY-----"]
)
def test_a_key_that_is_none_is_refused(key: str) -> None:
    """The error says what to paste, and does not show what was pasted."""
    with pytest.raises(ValueError, match=r"whole \.pem file") as caught:
        plugin.settings.model_validate({"app_id": 1, "private_key": key, "mode": "polling"})
    assert "AA==" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("https://api.github.com", "https://api.github.com/graphql"),
        ("https://ghe.example.org/api/v3", "https://ghe.example.org/api/graphql"),
    ],
)
def test_graphql_belongs_to_the_base_url(platform: Simulator, base: str, expected: str) -> None:
    """GitHub Enterprise Server has another path."""
    settings = plugin.settings.model_validate(platform.settings(base_url=base))
    assert getattr(settings, "graphql_url", "") == expected


async def test_an_error_never_shows_the_url_of_a_proxy_or_a_token(platform: Simulator) -> None:
    """A broken call names the path alone."""
    platform.cut("other", times=10)
    with pytest.raises(ChannelError, match="GET /app"):
        async with open_connection(plugin, platform.settings()):
            pass


async def test_a_replica_that_takes_over_begins_where_the_other_ended(platform: Simulator) -> None:
    """The position is that of the database, not the one from when the replica was started."""
    state, first, second = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    async with open_connection(plugin, platform.settings(), state) as standby:
        async with open_connection(plugin, platform.settings(), state) as active, receiving(active, first):
            await platform.say(ROOM, "before")
            await first.wait(1)
            await platform.wait_until(
                lambda: state.values["deliveries:position"] == str(platform.api.deliveries[-1].id)
            )
        async with receiving(standby, second):
            await platform.say(ROOM, "after")
            updates = await second.wait(1)
    assert [one.text for one in updates if isinstance(one, Message)] == ["after"]


def test_the_repositories_of_an_owner_share_a_rate_limit() -> None:
    """GitHub counts the calls of an installation, and an owner installs an app once."""
    rooms = ("octo/loft", "Octo/nest", "acme/loft")
    assert [plugin.limits.account_of(room) for room in rooms] == ["octo", "octo", "acme"]
