"""Each command of the command line makes one request of the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from fake_gateway import FakeGateway

Run = Callable[..., Result]

ACTIONS: dict[str, tuple[str, str, Any]] = {
    "jobs stop job_1": ("POST", "/jobs/job_1/stop", {}),
    "approvals approve apr_1": ("POST", "/approvals/apr_1", {"decision": "approve"}),
    "approvals deny apr_1 --comment no": ("POST", "/approvals/apr_1", {"decision": "deny", "comment": "no"}),
    "deliveries retry dlv_1": ("POST", "/deliveries/dlv_1/retry", {}),
    "deliveries drop dlv_1": ("POST", "/deliveries/dlv_1/drop", {}),
    "webhooks add https://h.example --event agent.finished": (
        "POST",
        "/accounts/me/webhooks",
        {"url": "https://h.example", "events": ["agent.finished"]},
    ),
    "webhooks test whk_1": ("POST", "/webhooks/whk_1/test", {}),
    "webhooks rotate whk_1": ("POST", "/webhooks/whk_1/rotate", {}),
    "webhooks enable whk_1": ("PATCH", "/accounts/me/webhooks/whk_1", {"enabled": True}),
    "webhooks replay whk_1 --after 2026-01-31T00:00:00Z": (
        "POST",
        "/webhooks/whk_1/replay",
        {"after": "2026-01-31T00:00:00Z"},
    ),
    "webhooks replay whk_1 --event evt_1 --event evt_2": (
        "POST",
        "/webhooks/whk_1/replay",
        {"ids": ["evt_1", "evt_2"]},
    ),
    "webhooks rm whk_1": ("DELETE", "/accounts/me/webhooks/whk_1", None),
    "webhooks show whk_1": ("GET", "/accounts/me/webhooks/whk_1", None),
    "webhooks set whk_1 --target https://i.example --event job.* --no-ordered": (
        "PATCH",
        "/accounts/me/webhooks/whk_1",
        {"url": "https://i.example", "events": ["job.*"], "ordered": False},
    ),
    "schedules add hello --conversation c --every PT15M --paused": (
        "POST",
        "/accounts/me/schedules",
        {
            "conversation": "c",
            "text": "hello",
            "missed": "once",
            "kind": "turn",
            "heartbeat": False,
            "paused": True,
            "every": "PT15M",
        },
    ),
    "schedules set sch_1 --text hello --every PT15M": (
        "PATCH",
        "/accounts/me/schedules/sch_1",
        {"text": "hello", "every": "PT15M"},
    ),
    "triggers add {{body}} --conversation c": (
        "POST",
        "/accounts/me/triggers",
        {"conversation": "c", "template": "{{body}}"},
    ),
    "triggers rm trg_1": ("DELETE", "/accounts/me/triggers/trg_1", None),
    "sandboxes add small provider=host": (
        "POST",
        "/accounts/me/sandboxes",
        {"name": "small", "config": {"provider": "host"}},
    ),
    "sandboxes set small image=null": (
        "PATCH",
        "/accounts/me/sandboxes/small",
        {"config": {"image": None}},
    ),
    "sandboxes set small memoryLimit=420 lifecycle=7.5 image=2x": (
        "PATCH",
        "/accounts/me/sandboxes/small",
        {"config": {"memoryLimit": 420, "lifecycle": 7.5, "image": "2x"}},
    ),
    "channels set bot application=420": (
        "PATCH",
        "/accounts/me/channels/bot",
        {"settings": {"application": "420"}},
    ),
    "channels show bot": ("GET", "/accounts/me/channels/bot", None),
    "channels add bot --kind telegram --paused": (
        "POST",
        "/accounts/me/channels",
        {"name": "bot", "kind": "telegram", "settings": {}, "paused": True},
    ),
    "channels set bot token=2:b allow=null --agent coder --rename b": (
        "PATCH",
        "/accounts/me/channels/bot",
        {"settings": {"token": "2:b", "allow": None}, "agent": "coder", "name": "b"},
    ),
    "channels rm bot --yes": ("DELETE", "/accounts/me/channels/bot", None),
    "channels add bot token=1:a allow=[1] --kind telegram": (
        "POST",
        "/accounts/me/channels",
        {"name": "bot", "kind": "telegram", "settings": {"token": "1:a", "allow": [1]}},
    ),
    "sandboxes rm ../x": ("DELETE", "/accounts/me/sandboxes/../x", None),
    'agents add coder model=builtin:shell limits={"requests":5}': (
        "POST",
        "/accounts/me/agents",
        {"name": "coder", "config": {"model": "builtin:shell", "limits": {"requests": 5}}},
    ),
    "agents rm coder --yes": ("DELETE", "/accounts/me/agents/coder", None),
    "skills rm deploy": ("DELETE", "/accounts/me/skills/deploy", None),
    "keys create ci --scope read": ("POST", "/accounts/me/keys", {"name": "ci", "scopes": ["read"]}),
    "accounts add ada": ("POST", "/accounts", {"name": "ada"}),
    "accounts key ada ci --scope read": ("POST", "/accounts/ada/keys", {"name": "ci", "scopes": ["read"]}),
    "accounts rm ada --yes": ("DELETE", "/accounts/ada", None),
    "conversations handover cnv_1 human --json": (
        "POST",
        "/conversations/cnv_1/handover",
        {"state": "human"},
    ),
    "keys revoke key_1": ("DELETE", "/accounts/me/keys/key_1", None),
}


@pytest.mark.parametrize("words", ACTIONS)
def test_commands_ask_what_they_say(run: Run, gateway: FakeGateway, words: str) -> None:
    """Each command makes its one request, with the key, a quoted path and an idempotency key."""
    method, path, body = ACTIONS[words]
    gateway.responses[method, path] = (200, {"id": "x", "key": "dvk_new"})
    result = run(*words.split(), "--url", gateway.url, "--key", "dvk_x")
    assert result.exit_code == 0, result.stderr
    ((asked, at, sent, headers),) = gateway.requests
    assert (asked, at, sent) == (method, path, body)
    assert headers["Authorization"] == "Bearer dvk_x"
    assert ("Idempotency-Key" in headers) == (method == "POST")
