"""The parts that adapters share: code in texts, mentions, tokens, the errors of statuses, checks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr

from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.github.settings import GitHubSettings
from channels.inbox.checks import posts_check, refused, wants_check
from channels.inbox.code import fenced_lines, map_prose
from channels.inbox.commands import parse_mentioned, parse_slash
from channels.inbox.errors import rate_limit, require_id, status_error
from channels.inbox.settings import PostedSettings
from channels.inbox.signatures import hmac_sha256, is_hmac
from channels.inbox.text import insert_links
from channels.inbox.tokens import TokenCache
from channels.inbox.updates import find_mention, make_update, parse_update
from channels.message import Address, Attachment, Author, Command, IgnoredUpdate, Message
from channels.pancake.settings import PancakeSettings
from channels.slack.settings import SlackSettings
from channels.zalo.settings import ZaloSettings

PICTURE = Attachment(name="a.jpg", media_type="image/jpeg", size=1, ref="r")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\na\n```\nb", [True, True, True, False]),
        ("````\n```\na\n````\nb", [True, True, True, True, False]),
        ("> ```\n> a\nb", [True, True, False]),
        ("> ```\n> a\n> ```\n> b", [True, True, True, False]),
        ("```\n> ```\na\n```\nb", [True, True, True, True, False]),
        ("~~~\n```\n~~~\nb", [True, True, True, False]),
        ("``` a ` b\nc", [False, False]),
        ("- a\n  ```\n  b\n  ```", [False, True, True, True]),
    ],
)
def test_a_fence_ends_with_its_marker_or_its_quote(text: str, code: list[bool]) -> None:
    """A longer fence holds shorter ones, and a quote that ends closes the fence within it."""
    assert [is_code for _, is_code in fenced_lines(text)] == code


def test_only_prose_is_changed() -> None:
    """Spans and fences stay as they are; a run of backticks without an end is prose."""
    assert map_prose("a `b` ``c ` d`` e `f\n```\ng\n```", str.upper) == "A `b` ``c ` d`` E `F\n```\ng\n```"


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        ("@Dove, hello", True, "hello"),
        ("hello @dove", True, "hello @dove"),
        ("@dovecote hello", False, "@dovecote hello"),
        ("me@dove.example", False, "me@dove.example"),
        ("> @dove said\nwell", False, "> @dove said\nwell"),
        ("`@dove`", False, "`@dove`"),
        ("> ```\n> open\n@dove hello", True, "> ```\n> open\n@dove hello"),
        ("<!-- ask @dove -->\nIt is late.", False, "<!-- ask @dove -->\nIt is late."),
        ("<!-- ask\n`now` @dove\n--> late", False, "<!-- ask\n`now` @dove\n--> late"),
        ("<!-- a --> @dove <!-- b -->", True, "<!-- a --> @dove <!-- b -->"),
        ("<!-- @dove", True, "<!-- @dove"),
        ("`<!--` @dove `-->`", True, "`<!--` @dove `-->`"),
    ],
)
def test_a_mention_is_the_whole_name_outside_of_code_and_quotes(text: str, found: bool, rest: str) -> None:
    """Another name, an address, code, a quote and a comment that is not shown are no mention."""
    assert find_mention(text, "dove") == (found, rest)


def test_no_name_is_never_mentioned() -> None:
    """A bot whose name is not known cannot be addressed by it."""
    assert find_mention("@ hello", "") == (False, "@ hello")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"command": ("stop", "")}, Command),
        ({"command": ("stop", ""), "edited": True}, Message),
        ({"command": ("stop", ""), "attachments": (PICTURE,)}, Message),
        ({"command": None}, Message),
    ],
)
def test_a_command_is_carried_out_once(given: dict[str, Any], kind: type[object]) -> None:
    """An edited command, and one that came with a file, are text."""
    common = {
        "key": "1",
        "address": Address(channel="chn_1", room="r"),
        "author": Author(id="u"),
        "sent_at": datetime(2026, 1, 1, tzinfo=UTC),
        "platform_id": "1",
    }
    assert type(make_update("/stop", common=common, mention=False, **given)) is kind
    assert isinstance(make_update("", None, common, mention=True), IgnoredUpdate)


@pytest.mark.parametrize(
    ("text", "mention", "name"),
    [("/stop", False, "stop"), ("/stop", True, "stop"), ("stop", True, "stop"), ("stop", False, None)],
)
def test_a_command_needs_no_slash_after_a_mention(text: str, mention: bool, name: str | None) -> None:
    """A text is a command with a slash, or without one after a mention, and else a message."""
    common = {
        "key": "1",
        "address": Address(channel="chn_1", room="r"),
        "author": Author(id="u"),
        "sent_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    found = parse_update(text, common, mention=mention)
    assert (found.name if isinstance(found, Command) else None) == name


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Ambiguous),
        (302, Unreachable),
        (400, Rejected),
        (401, Unauthorized),
        (403, Rejected),
        (404, Undeliverable),
        (500, Ambiguous),
        (599, Ambiguous),
    ],
)
def test_a_status_has_one_meaning(status: int, kind: type[ChannelError]) -> None:
    """Only where the request may have been carried out is the error Ambiguous."""
    assert type(status_error(status, "GET /app")) is kind
    assert type(status_error(403, "GET /app", {403: Undeliverable})) is Undeliverable


@pytest.mark.parametrize(
    ("status", "headers", "words", "wait"),
    [
        (429, {}, "", 30.0),
        (429, {"Retry-After": "7"}, "", 7.0),
        (429, {"Retry-After": "0"}, "", 1.0),
        (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "", 30.0),
        (429, {"Retry-After": "9" * 13}, "", 30.0),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, "", 1.0),
        (403, {"X-RateLimit-Remaining": "0"}, "", 30.0),
        (403, {}, "secondary rate limit", 30.0),
        (403, {"X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "1"}, "no", None),
        (503, {"Retry-After": "7"}, "", None),
    ],
)
def test_a_limit_is_recognised(status: int, headers: dict[str, str], words: str, wait: float | None) -> None:
    """The wait is the platform's if it names a usable one, and never less than a second."""
    found = rate_limit(status, headers, 30.0, words=words)
    assert (found.retry_after if isinstance(found, RateLimited) else None) == wait


def test_a_response_without_an_id_may_have_sent_the_message() -> None:
    """So the send is ambiguous, not failed."""
    assert require_id(12, "POST /x") == "12"
    with pytest.raises(Ambiguous, match="POST /x"):
        require_id(None, "POST /x")


async def test_a_token_is_made_once_and_replaced_when_it_ends_or_is_refused() -> None:
    """Concurrent calls share one renewal; a call that was refused is made once more, not twice."""
    made: list[str] = []
    lives = [60.0, 3600.0, 3600.0, 3600.0]

    async def renew(holder: str) -> tuple[str, float]:
        await asyncio.sleep(0)
        made.append(f"{holder}{len(made)}")
        return made[-1], lives[len(made) - 1]

    async def echo(token: str) -> str:
        return token

    async def refuse(token: str) -> str:
        refused_tokens.append(token)
        raise Unauthorized

    refused_tokens: list[str] = []
    cache = TokenCache(renew, early=120)
    assert await cache.use("a", echo) == "a0"
    assert await asyncio.gather(*(cache.use("a", echo) for _ in range(5))) == ["a1"] * 5
    with pytest.raises(Unauthorized):
        await cache.use("a", refuse)
    assert refused_tokens == ["a1", "a2"]
    assert made == ["a0", "a1", "a2"]


def test_a_post_without_a_secret_is_never_signed() -> None:
    """Not even with the signature of an empty secret."""
    headers = {"x-signature": f"sha256={hmac_sha256('', b'{}')}"}
    given = {"header": "x-signature", "prefix": "sha256="}
    assert not is_hmac(None, headers, b"{}", **given)
    assert is_hmac(SecretStr(""), headers, b"{}", **given)
    assert not is_hmac(SecretStr("s"), headers, b"{}", **given)


def test_a_check_names_what_is_missing_and_the_remedy() -> None:
    """What is there needs no remedy."""
    bad = wants_check("scopes", {"read": "to hear", "write": ""}, ["x"], detail="all", remedy="Grant it.")
    assert (bad.ok, bad.detail, bad.remedy) == (False, "missing: read (to hear), write", "Grant it.")
    good = wants_check("scopes", {"read": ""}, ["read"], detail="all", remedy="Grant it.")
    assert (good.ok, good.detail, good.remedy) == (True, "all", "")
    assert not wants_check("scopes", {"read": ""}, "read", detail="all", remedy="Grant it.").ok
    assert refused("bot", Unauthorized(), operator="Copy it again.").remedy == "Copy it again."
    assert "base_url" in refused("bot", Unreachable(), operator="Copy it again.").remedy


@pytest.mark.parametrize(
    ("registered", "expected", "is_good"),
    [
        ("https://bot.example/in", "https://bot.example/in", True),
        ("https://bot.example/in/", "https://bot.example/in", True),
        ("https://other.example/secret", "https://bot.example/in", False),
        ("", "https://bot.example/in", False),
        ("", None, False),
        ("https://bot.example/in", None, True),
    ],
)
def test_posts_must_go_to_the_gateway(registered: str, expected: str | None, is_good: bool) -> None:
    """The path of another program's URL is not shown, because it may hold its secret."""
    settings = PostedSettings.model_validate({"webhook_secret": "12345678", "webhook_url": expected})
    found = posts_check(settings, registered, polled="ready")
    assert (found.ok, bool(found.remedy)) == (is_good, not is_good)
    assert "secret" not in found.detail
    polling = PostedSettings(mode="polling")
    assert posts_check(polling, registered, polled="ready").detail == "ready"


def test_settings_that_are_put_together_keep_their_defaults() -> None:
    """The first base decides: a later one has the fields of ChannelSettings too."""
    fields = GitHubSettings.model_fields
    shown = {name: fields[name].default for name in ("reactions", "mode", "poll_seconds", "catch_up_seconds")}
    assert shown == {"reactions": True, "mode": "webhook", "poll_seconds": 5, "catch_up_seconds": 60}
    assert SlackSettings.model_fields["reactions"].default is True
    assert ZaloSettings.model_fields["mode"].default == "polling"
    assert PancakeSettings.model_fields["poll_seconds"].default == 10


@pytest.mark.parametrize(
    ("text", "slash", "mentioned"),
    [
        ("/schedule every day at 9", ("schedule", "every day at 9"), ("schedule", "every day at 9")),
        ("/undo", ("undo", ""), ("undo", "")),
        ("undo", None, ("undo", "")),
        ("usage please", None, None),
        ("title", None, None),
        ("/deploy now", None, None),
    ],
)
def test_each_command_of_the_gateway_is_one_where_commands_are_messages(
    text: str, slash: tuple[str, str] | None, mentioned: tuple[str, str] | None
) -> None:
    """With a slash it takes arguments; a word after a mention is a command only if it is alone."""
    assert (parse_slash(text), parse_mentioned(text)) == (slash, mentioned)


@pytest.mark.parametrize(
    "links", [[(-5, 2, "u")], [(0, 10**9, "u")], [(5, -9, "u")], [(1, 1, "u"), (1, 1, "u"), (0, 2, "u")]]
)
def test_links_at_impossible_places_lose_no_word(links: list[tuple[int, int, str]]) -> None:
    """Whatever a platform says where a link is, what the person wrote is in the text, in order."""
    assert insert_links("one", links).replace(" (u)", "") == "one"
