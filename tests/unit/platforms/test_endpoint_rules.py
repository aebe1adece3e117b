"""Endpoints of channels in account records lead nowhere the operator has not allowed."""

from __future__ import annotations

import pytest

from channels.discord.settings import DiscordSettings
from channels.settings import ChannelSettings
from channels.telegram.settings import TelegramSettings
from egress.policy import EgressPolicy
from gateway.records.rules.endpoint_rules import disallowed_endpoints

TOKEN = "1:" + "a" * 35


def _found(base_url: str, rules: EgressPolicy) -> list[str]:
    settings = TelegramSettings.model_validate({"token": TOKEN, "base_url": base_url})
    return [problem.pointer for problem in disallowed_endpoints(settings, rules, "/settings")]


def test_the_platforms_own_endpoint_is_always_allowed() -> None:
    """The default needs no permission."""
    settings = TelegramSettings.model_validate({"token": TOKEN})
    assert list(disallowed_endpoints(settings, EgressPolicy(), "/settings")) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "http://127.0.0.1:4222",
        "HTTP://127.0.0.1:4222",
        "hTTps://metadata.example",
        "https://metadata.example",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]:4222/",
    ],
)
def test_other_endpoints_are_refused(url: str) -> None:
    """Neither a private address nor a name that could become one is stored."""
    assert _found(url, EgressPolicy()) == ["/settings/base_url"]


def test_an_allowed_network_may_be_named_by_address() -> None:
    """What the operator allows, an account may name."""
    rules = EgressPolicy.parse("127.0.0.0/8")
    assert _found("http://127.0.0.1:9000", rules) == []
    assert _found("http://localhost:9000", rules) == []
    assert _found("http://10.0.0.1:9000", rules) == ["/settings/base_url"]


@pytest.mark.parametrize("url", ["ws://127.0.0.1:4222/", "WS://127.0.0.1:4222/", "wSs://metadata.example/"])
def test_a_gateway_is_judged_like_any_endpoint(url: str) -> None:
    """The scheme of a WebSocket makes no difference, and neither does its case."""
    settings = DiscordSettings.model_validate({"token": "MTIz.x.y", "gateway_url": url})
    found = [problem.pointer for problem in disallowed_endpoints(settings, EgressPolicy(), "/settings")]
    assert found == ["/settings/gateway_url"]


def test_a_url_of_another_type_is_refused() -> None:
    """A plugin that keeps a URL as plain text is not trusted to have parsed it."""

    class LooseSettings(ChannelSettings):
        url: str = "https://chat.example"

    settings = LooseSettings(url="HTTP://127.0.0.1/")
    assert [one.pointer for one in disallowed_endpoints(settings, EgressPolicy.parse("127.0.0.0/8"), "")] == [
        "/url"
    ]
