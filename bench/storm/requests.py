"""What a storm sends: requests that create, change, use and delete the same few things.

A line is a weight, a route with places to fill (`choices.Choices.path`), and the body that goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.storm import bodies
from bench.storm.bodies import Body, always, one_of, word_as
from bench.storm.choices import Choices

CHAT_COMMANDS = (
    *("/new", "/undo", "/stop", "/retry", "/status", "/jobs", "/usage", "/compact", "/title", "/link"),
    *("/queue steer", "/queue collect", "/queue interrupt", "/queue default", "/remind in 5s tea"),
    *("!&sleep 1", "!sleep 1", "!seq 1 3000"),
)
"""What people write in chats, besides messages whose answers they wait for."""


QUEUE_MODES = ("steer", "collect", "followup")
ITEM = {"type": "message", "role": "user", "content": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a storm."""

    method: str
    route: str
    path: str
    body: Any = None


Operation = tuple[float, str, Body | None]
"""A weight, a route and its body."""

OPERATIONS: Mapping[str, Sequence[Operation]] = {
    "records": [
        (2, "POST /accounts/me/agents", bodies.agent),
        (2, "PATCH /accounts/me/agents/{name}", bodies.agent_change),
        (1, "DELETE /accounts/me/agents/{name}", None),
        (2, "POST /accounts/me/sandboxes", bodies.sandbox),
        (1, "PATCH /accounts/me/sandboxes/{name}", bodies.new_name),
        (1, "DELETE /accounts/me/sandboxes/{name}", None),
        (2, "POST /accounts/me/workspaces", bodies.named()),
        (1, "PATCH /accounts/me/workspaces/{name}", bodies.new_name),
        (1, "DELETE /accounts/me/workspaces/{name}", None),
        (2, "POST /accounts/me/skills", bodies.named(description="x")),
        (1, "PATCH /accounts/me/skills/{name}", lambda choices: {"config": {"description": choices.word()}}),
        (1, "DELETE /accounts/me/skills/{name}", None),
        (1, "POST /accounts/me/credentials", bodies.credential),
        (1, "DELETE /accounts/me/credentials/{name}", None),
    ],
    "files": [
        (2, "PUT /accounts/me/agents/{name}/files/AGENTS.md", always(b"hello")),
        (1, "DELETE /accounts/me/agents/{name}/files/AGENTS.md", None),
        (2, "PUT /accounts/me/skills/{name}/files/b.md", always(b"hello")),
        (1, "DELETE /accounts/me/skills/{name}/files/b.md", None),
        (2, "PUT /accounts/me/workspaces/{name}/files/a.txt", always(b"hello")),
        (1, "DELETE /accounts/me/workspaces/{name}/files/a.txt", None),
        (1, "POST /accounts/me/workspaces/{name}/files:rename", always({"path": "a.txt", "to": "b.txt"})),
        (1, "POST /accounts/me/workspaces/{name}/files:copy", always({"path": "a.txt", "to": "c.txt"})),
        (1, "POST /accounts/me/workspaces/{name}/files:mkdir", always({"path": "d"})),
        (1, "POST /accounts/me/workspaces/{name}/files:search", always({"text": "x"})),
        (1, "POST /accounts/me/workspaces/{name}/uploads", always({"path": "a.txt", "size": 5})),
        (1, "DELETE /accounts/me/workspaces/{name}/uploads/{upl}", None),
        (1, "POST /turns/{trn}/restore", one_of({"paths": ["a.txt"]}, {"paths": ["a.txt"], "remove": True})),
        (1, "GET /turns/{trn}/files", None),
    ],
    "turns": [
        (6, "POST /agents/{agent}/turns", bodies.turn),
        (6, "POST /agents/{thinker}/turns", bodies.turn),
        (2, "POST /turns/{trn}/cancel", None),
        (2, "POST /turns/{trn}/retry", None),
        (2, "POST /turns/{trn}/rerun", always({})),
        (1, "POST /turns/{trn}/continue", always({})),
        (2, "POST /jobs/{job}/stop", None),
        (1, "GET /jobs", None),
    ],
    "approvals": [
        (2, "GET /approvals", None),
        (2, "POST /approvals/{apr}", one_of({"decision": "approve"}, {"decision": "deny"})),
        (1, "POST /approvals/{apr}", one_of({"answer": "tea"}, {"answer": {"drink": "rum"}})),
    ],
    "sandboxes": [
        (2, "GET /sandboxes", None),
        (2, "POST /sandboxes/{box}/exec", always({"command": "echo x"})),
        (1, "POST /sandboxes/{box}/stop", None),
        (1, "DELETE /sandboxes/{box}", None),
        (1, "GET /sandboxes/{box}/services", None),
        (1, "POST /sandboxes/sweep", None),
    ],
    "conversations": [
        (2, "DELETE /conversations/{conversation}", None),
        (1, "PATCH /conversations/{conversation}", word_as("title")),
        (1, "PATCH /conversations/{conversation}", one_of(*({"queue": mode} for mode in QUEUE_MODES))),
        (2, "POST /conversations/{conversation}/messages", always({"text": "!echo y"})),
        (1, "POST /conversations/{conversation}/handover", one_of({"state": "human"}, {"state": "agent"})),
        (1, "GET /conversations/{conversation}/snapshot", None),
    ],
    "protocols": [
        (2, "POST /v1/chat/completions", bodies.completion),
        (2, "POST /v1/responses", bodies.response),
        (1, "POST /v1/responses/{resp}/cancel", None),
        (1, "DELETE /v1/responses/{resp}", None),
        (1, "POST /v1/conversations", always({"metadata": {"a": "b"}})),
        (1, "POST /v1/conversations/{conv}/items", always({"items": [ITEM]})),
        (1, "POST /v1/conversations/{conv}", always({"metadata": {"a": "c"}})),
        (1, "DELETE /v1/conversations/{conv}", None),
        (2, "POST /a2a", bodies.a2a_message),
        (1, "POST /mcp", bodies.mcp_call),
        (2, "POST /agents/{agent}/ui", bodies.ui_message),
        (2, "POST /agui", bodies.agui_run),
    ],
    "deliveries": [
        (2, "POST /accounts/me/webhooks", bodies.webhook),
        (2, "PATCH /accounts/me/webhooks/{whk}", bodies.webhook_change),
        (1, "POST /webhooks/{whk}/rotate", None),
        (1, "POST /webhooks/{whk}/test", None),
        (1, "POST /webhooks/{whk}/replay", always({"after": "2020-01-01T00:00:00Z"})),
        (2, "DELETE /accounts/me/webhooks/{whk}", None),
        (2, "POST /deliveries/{dlv}/retry", None),
        (2, "POST /deliveries/{dlv}/drop", None),
        (1, "GET /deliveries", None),
    ],
    "schedules": [
        (2, "POST /accounts/me/schedules", bodies.schedule),
        (1, "PATCH /accounts/me/schedules/{sch}", word_as("text")),
        (1, "POST /accounts/me/schedules/{sch}/run", None),
        (1, "DELETE /accounts/me/schedules/{sch}", None),
        (2, "POST /accounts/me/triggers", bodies.trigger),
        (1, "DELETE /accounts/me/triggers/{trg}", None),
    ],
    "account": [
        (2, "POST /accounts/me/memories", bodies.memory),
        (1, "PATCH /accounts/me/memories/{mem}", word_as("text")),
        (1, "DELETE /accounts/me/memories/{mem}", None),
        (2, "POST /accounts/me/channels", bodies.channel),
        (1, "PATCH /accounts/me/channels/{name}", lambda choices: {"agent": choices.agent()}),
        (1, "DELETE /accounts/me/channels/{name}", None),
        (1, "PATCH /accounts/me", one_of({"timezone": "UTC"}, {"timezone": "Europe/Berlin"})),
        (1, "PUT /accounts/me/budget", always({"person_day": {"tokens": 100_000}})),
        (1, "POST /accounts/me/keys", lambda choices: {"name": choices.name()}),
        (1, "PATCH /accounts/me/keys/{key}", lambda choices: {"name": choices.name()}),
        (1, "DELETE /accounts/me/keys/{key}", None),
        (1, "GET /accounts/me/persons", None),
        (1, "PUT /accounts/me/persons/{per}/budget", always({"day": {"tokens": 100_000}})),
        (1, "DELETE /accounts/me/persons/{per}/budget", None),
        (1, "GET /accounts/me/usage", None),
        (1, "GET /accounts/me/audit", None),
    ],
}

WEIGHTS: Mapping[str, float] = {
    "records": 3,
    "files": 2,
    "turns": 3,
    "approvals": 3,
    "sandboxes": 1,
    "conversations": 2,
    "protocols": 3,
    "deliveries": 2,
    "schedules": 2,
    "account": 2,
}
"""How often each kind of request is chosen."""


def choose_request(choices: Choices, kinds: Sequence[str]) -> Request:
    """Return a random request of one of these kinds."""
    kind = choices.weighted(kinds, [WEIGHTS[kind] for kind in kinds])
    lines = OPERATIONS[kind]
    _, route, body = choices.weighted(lines, [weight for weight, _, _ in lines])
    method, template = route.split()
    filled = None if body is None else body(choices)
    return Request(method=method, route=template, path=choices.path(template), body=filled)
