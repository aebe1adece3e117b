"""What a storm sends: requests that create, change, use and delete the same few things.

A line is a weight, a route with places to fill (`choices.Choices.path`), and the body that goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.storm.choices import Choices

Body = Callable[[Choices], Any]
"""Makes a body: bytes are sent as they are, everything else as JSON."""

COMMANDS = ("!echo x", "!sleep 0.3", "!&sleep 1", "!seq 1 3000")

CHAT_COMMANDS = (
    *("/new", "/undo", "/stop", "/retry", "/status", "/jobs", "/usage", "/compact", "/title", "/link"),
    *("/queue steer", "/queue collect", "/queue interrupt", "/queue default", "/remind in 5s tea"),
    *("!&sleep 1", "!sleep 1", "!seq 1 3000"),
)
"""What people write in chats, besides messages whose answers they wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a storm."""

    method: str
    route: str
    path: str
    body: Any = None


def _agent(choices: Choices) -> Any:
    workspaces = [{"name": "a", "workspaceId": choices.name()}]
    return {"name": choices.name(), "config": {"sandbox": choices.name(), "workspaces": workspaces}}


def _agent_change(choices: Choices) -> Any:
    instructions = {"config": {"instructions": choices.word()}}
    return choices.one_of(instructions, {"name": choices.name()}, {"config": {"sandbox": choices.name()}})


def _named(**config: Any) -> Body:
    return lambda choices: {"name": choices.name(), "config": config}


def _credential(choices: Choices) -> Any:
    secret = {"name": "X-Key", "value": "v"}
    return {
        "name": choices.name(),
        "host": "git.example.org",
        "kind": "header",
        "secret": secret,
        "agents": ["default"],
    }


def _channel(choices: Choices) -> Any:
    settings = {"token": "123456:" + "A" * 35, "base_url": "http://127.0.0.1:9", "allow": ["*"]}
    return {"name": choices.name(), "kind": "telegram", "agent": choices.agent(), "settings": settings}


def _turn(choices: Choices) -> Any:
    return {"input": choices.one_of(*COMMANDS), "conversation": choices.conversation()}


def _response(choices: Choices) -> Any:
    background = {"model": "default", "input": "!sleep 0.2", "background": True}
    in_conversation = {"model": choices.agent(), "input": "!echo r", "conversation": choices.id("conv")}
    return choices.one_of(background, in_conversation)


def _a2a_message(choices: Choices) -> Any:
    message = {"messageId": choices.word(), "role": "ROLE_USER", "parts": [{"text": "!echo a"}]}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}


def _ui_message(choices: Choices) -> Any:
    message = {"id": choices.word(), "role": "user", "parts": [{"type": "text", "text": "!echo u"}]}
    return {"id": choices.one_of("chat1", "chat2"), "messages": [message]}


def _agui_run(choices: Choices) -> Any:
    message = {"id": choices.word(), "role": "user", "content": "!echo g"}
    run = {"threadId": choices.one_of("t1", "t2"), "runId": choices.word(), "messages": [message]}
    return run | {"tools": [], "context": [], "state": {}, "forwardedProps": {}}


def _word_as(field: str) -> Body:
    return lambda choices: {field: choices.word()}


def _file(_: Choices) -> bytes:
    return b"hello"


OPERATIONS: Mapping[str, Sequence[tuple[float, str, Body | None]]] = {
    "records": [
        (2, "POST /accounts/me/agents", _agent),
        (2, "PATCH /accounts/me/agents/{name}", _agent_change),
        (1, "DELETE /accounts/me/agents/{name}", None),
        (2, "POST /accounts/me/sandboxes", _named(provider="host")),
        (1, "PATCH /accounts/me/sandboxes/{name}", lambda choices: {"name": choices.name()}),
        (1, "DELETE /accounts/me/sandboxes/{name}", None),
        (2, "POST /accounts/me/workspaces", _named()),
        (1, "PATCH /accounts/me/workspaces/{name}", lambda choices: {"name": choices.name()}),
        (1, "DELETE /accounts/me/workspaces/{name}", None),
        (2, "POST /accounts/me/skills", _named(description="x")),
        (1, "PATCH /accounts/me/skills/{name}", lambda choices: {"config": {"description": choices.word()}}),
        (1, "DELETE /accounts/me/skills/{name}", None),
        (1, "POST /accounts/me/credentials", _credential),
        (1, "DELETE /accounts/me/credentials/{name}", None),
    ],
    "files": [
        (2, "PUT /accounts/me/agents/{name}/files/AGENTS.md", _file),
        (1, "DELETE /accounts/me/agents/{name}/files/AGENTS.md", None),
        (2, "PUT /accounts/me/skills/{name}/files/b.md", _file),
        (1, "DELETE /accounts/me/skills/{name}/files/b.md", None),
        (2, "PUT /accounts/me/workspaces/{name}/files/a.txt", _file),
        (1, "DELETE /accounts/me/workspaces/{name}/files/a.txt", None),
        (1, "POST /accounts/me/workspaces/{name}/files:rename", lambda _: {"path": "a.txt", "to": "b.txt"}),
    ],
    "turns": [
        (12, "POST /agents/{agent}/turns", _turn),
        (2, "POST /turns/{trn}/cancel", None),
        (2, "POST /turns/{trn}/retry", None),
        (2, "POST /turns/{trn}/rerun", lambda _: {}),
        (1, "POST /turns/{trn}/continue", lambda _: {}),
        (2, "POST /jobs/{job}/stop", None),
    ],
    "conversations": [
        (2, "DELETE /conversations/{conversation}", None),
        (1, "PATCH /conversations/{conversation}", _word_as("title")),
        (
            1,
            "PATCH /conversations/{conversation}",
            lambda choices: {"queue": choices.one_of("steer", "collect", "followup")},
        ),
        (2, "POST /conversations/{conversation}/messages", lambda _: {"text": "!echo y"}),
        (
            1,
            "POST /conversations/{conversation}/handover",
            lambda choices: {"state": choices.one_of("human", "agent")},
        ),
        (1, "GET /conversations/{conversation}/snapshot", None),
    ],
    "protocols": [
        (
            2,
            "POST /v1/chat/completions",
            lambda choices: {
                "model": choices.agent(),
                "messages": [{"role": "user", "content": "!echo c"}],
                "user": choices.one_of("u1", "u2"),
            },
        ),
        (2, "POST /v1/responses", _response),
        (1, "POST /v1/responses/{resp}/cancel", None),
        (1, "DELETE /v1/responses/{resp}", None),
        (1, "POST /v1/conversations", lambda _: {"metadata": {"a": "b"}}),
        (
            1,
            "POST /v1/conversations/{conv}/items",
            lambda _: {"items": [{"type": "message", "role": "user", "content": "x"}]},
        ),
        (1, "DELETE /v1/conversations/{conv}", None),
        (2, "POST /a2a", _a2a_message),
        (2, "POST /agents/{agent}/ui", _ui_message),
        (2, "POST /agui", _agui_run),
    ],
    "deliveries": [
        (
            2,
            "POST /accounts/me/webhooks",
            lambda choices: {"url": f"{choices.receiver}/{choices.name()}", "events": ["*"]},
        ),
        (
            2,
            "PATCH /accounts/me/webhooks/{whk}",
            lambda choices: {"url": f"{choices.receiver}/{choices.name()}"},
        ),
        (1, "POST /webhooks/{whk}/rotate", None),
        (1, "POST /webhooks/{whk}/test", None),
        (2, "DELETE /accounts/me/webhooks/{whk}", None),
        (2, "POST /deliveries/{dlv}/retry", None),
        (2, "POST /deliveries/{dlv}/drop", None),
        (1, "GET /deliveries", None),
    ],
    "schedules": [
        (
            2,
            "POST /accounts/me/schedules",
            lambda choices: {
                "conversation": choices.one_of("one", "two"),
                "text": "!echo s",
                "every": "PT1M",
            },
        ),
        (1, "PATCH /accounts/me/schedules/{sch}", _word_as("text")),
        (1, "POST /accounts/me/schedules/{sch}/run", None),
        (1, "DELETE /accounts/me/schedules/{sch}", None),
        (
            2,
            "POST /accounts/me/triggers",
            lambda choices: {"agent": choices.agent(), "template": "!echo t", "conversation": "one"},
        ),
        (1, "DELETE /accounts/me/triggers/{trg}", None),
    ],
    "account": [
        (
            2,
            "POST /accounts/me/memories",
            lambda choices: {
                "text": choices.one_of("likes tea", "likes rum", choices.word()),
                "scope": "account",
            },
        ),
        (1, "PATCH /accounts/me/memories/{mem}", _word_as("text")),
        (1, "DELETE /accounts/me/memories/{mem}", None),
        (2, "POST /accounts/me/channels", _channel),
        (1, "PATCH /accounts/me/channels/{name}", lambda choices: {"agent": choices.agent()}),
        (1, "DELETE /accounts/me/channels/{name}", None),
        (1, "PATCH /accounts/me", lambda choices: {"timezone": choices.one_of("UTC", "Europe/Berlin")}),
        (1, "PUT /accounts/me/budget", lambda _: {"person_day": {"tokens": 100_000}}),
    ],
}

WEIGHTS: Mapping[str, float] = {
    "records": 3,
    "files": 2,
    "turns": 3,
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
