"""M2: the URL table: every route states its access, and every served path is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import get_args

import pytest
from pydantic import TypeAdapter

from gateway.web import asyncapi
from gateway.web.compat.a2a.methods import METHODS
from gateway.web.compat.mcp_tools import TOOLS
from gateway.web.http.auth import (
    Access,
    AdminAccess,
    JobTokenAccess,
    KeyAccess,
    OneTimeCodeAccess,
    PlatformAccess,
    PublicAccess,
    SignatureAccess,
    SocketAccess,
)
from gateway.web.http.route import PATH_PARAMETER, ApiRoute
from gateway.web.openapi import document
from gateway.web.routes import ROUTES

OPEN = {
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/asyncapi.json",
    "/.well-known/agent-card.json",
    "/channels/{id}/install",
    "/channels/{id}/oauth",
    "/{kind}/install",
    "/{kind}/oauth_redirect",
    "/sign-in/mcp",
    "/sign-in/mcp/callback",
}
CAMEL = {"turnId", "conversationId", "statusUrl", "resultId"}
"""The names outside of configs that are not in snake case."""

OTHERS = ("/v1/", "/agui", "/mcp", "/a2a")
"""Where the protocol of a third party gives the names."""

CHANGES_NOTHING = {
    "/accounts/me/workspaces/{id}/files:search",
    "/tickets",
    "/v1/responses/input_tokens",
    "/console/leave",
}
"""What a key that may only read may post to: it changes nothing, or ends this key alone."""

SCOPE_OF_EACH_TOOL = {"/mcp", "/a2a"}
"""Where a request names a tool or a method, and each has a scope of its own."""
CHANGING = KeyAccess | AdminAccess | PlatformAccess | SignatureAccess | JobTokenAccess | OneTimeCodeAccess
"""Who may change something."""

DOCUMENT = document(ROUTES)


def routes_where(is_wrong: Callable[[ApiRoute], object]) -> list[str]:
    """Return the method and path of each route that is not as it must be."""
    return [f"{route.method} {route.path}" for route in ROUTES if is_wrong(route)]


def test_every_route_says_who_may_ask() -> None:
    """Each route has an access marker; documents, health, console, channels and sign-ins are public."""
    assert not routes_where(lambda route: not isinstance(route.access, get_args(Access)))
    public = [route for route in ROUTES if isinstance(route.access, PublicAccess)]
    assert {route.method for route in public} == {"GET"}
    assert {route.path for route in public if route.tag != "console"} == OPEN


def test_every_change_needs_more_than_reading() -> None:
    """No key that may only read changes anything."""
    changes = [route for route in ROUTES if route.method != "GET"]
    assert not [route.path for route in changes if not isinstance(route.access, CHANGING)]
    readable = {route.path for route in changes if route.access == KeyAccess("read")}
    assert readable == SCOPE_OF_EACH_TOOL | CHANGES_NOTHING


def test_every_tool_that_changes_something_needs_more_than_reading() -> None:
    """A key that may only read is neither shown such a tool of the MCP server, nor can it call one."""
    changing = {name: tool.scope for name, tool in TOOLS.items() if tool.changes}
    assert changing == {"ask": "chat", "send": "chat", "approve": "chat"}


def test_every_method_of_a2a_that_changes_something_needs_more_than_reading() -> None:
    """A key that may only read can get and follow tasks."""
    assert {name: method.scope for name, method in METHODS.items() if method.changes} == dict.fromkeys(
        (
            *("SendMessage", "SendStreamingMessage", "CancelTask"),
            *("message/send", "message/stream", "tasks/cancel"),
        ),
        "chat",
    )


def test_a_path_parameter_may_have_any_name() -> None:
    """A pattern with a dot, which does not match line breaks, is PATH_PARAMETER, in which it does."""
    dot = re.compile(r"\{\w+:[^}]*(?<!\\)\.")
    assert not routes_where(lambda route: dot.search(route.path.replace(PATH_PARAMETER, "")))


def test_every_route_has_a_summary() -> None:
    """The document describes the purpose of each route."""
    assert not routes_where(lambda route: not route.summary)


def test_answers_name_things_in_snake_case() -> None:
    """Requests and responses of a route use one casing, except for a few fixed names."""
    own = [route for route in ROUTES if not route.path.startswith(OTHERS)]
    models = {model for route in own for model in (route.request_model, route.response_model) if model}
    named = {name for model in models for name in _properties(TypeAdapter(model).json_schema())}
    assert {name for name in named if name != name.lower()} == CAMEL


def _properties(schema: object) -> Iterator[str]:
    """Yield the names of all properties in a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for below in schema.values():
            yield from _properties(below)
    for below in schema if isinstance(schema, list) else ():
        yield from _properties(below)


def test_no_path_is_listed_twice() -> None:
    """A method on a path has one meaning."""
    named = [(route.method, route.path) for route in ROUTES]
    assert len(named) == len(set(named))


def test_only_the_stream_takes_a_key_in_its_first_frame() -> None:
    """Every other route takes its key from the header."""
    assert {route.path for route in ROUTES if isinstance(route.access, SocketAccess)} <= {"/ws"}


def test_the_document_names_every_route_once() -> None:
    """The OpenAPI document is made from the table, with unique names."""
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert DOCUMENT["openapi"].startswith("3.1")
    assert len(names) == len(set(names)) == sum(not route.hidden for route in ROUTES)
    text = json.dumps(DOCUMENT)
    assert all(f"#/components/schemas/{name}" in text for name in ("ProblemDetails", "TurnCreate", "Job"))


def test_the_gateway_sends_no_frames_of_clients() -> None:
    """An operation of the AsyncAPI document without a list of messages has all messages of its channel."""
    described = asyncapi.document()
    sent = {one["$ref"].rpartition("/")[2] for one in described["operations"]["follow"]["messages"]}
    assert sent == described["channels"]["socket"]["messages"].keys() - {"received"}
    assert {"event", "subscribed", "gap", "error"} <= sent


def test_every_operation_may_refuse_the_size_of_a_request() -> None:
    """A body is refused with 413, a URL with 414 and a header with 431, before a route is looked up."""
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert all({"413", "414", "431"} <= operation["responses"].keys() for operation in operations)


def test_components_have_public_names() -> None:
    """Generated clients see `Job`, not our class `JobResponse` and not the name of a module."""
    components = DOCUMENT["components"]["schemas"]
    assert {"Job", "Agent", "Approval", "AuditEntry", "Usage", "ListPage_Job_"} <= components.keys()
    assert [name for name in components if "__" in name or "Response" in name.removeprefix("Response")] == []
    titles = {name: shape.get("title", name) for name, shape in components.items()}
    assert [name for name, title in titles.items() if re.sub(r"\W", "_", title) != name] == []


@pytest.mark.parametrize(
    ("plural", "config"),
    [
        ("agents", "AgentConfig"),
        ("workspaces", "WorkspaceConfig"),
        ("sandboxes", "SandboxConfig"),
        ("skills", "SkillConfig"),
    ],
)
def test_the_config_of_every_kind_of_record_is_typed(plural: str, config: str) -> None:
    """What creates a record and what shows it refer to one schema, whose references all exist."""
    components, paths = DOCUMENT["components"]["schemas"], DOCUMENT["paths"]
    collection, one = paths[f"/accounts/me/{plural}"], paths[f"/accounts/me/{plural}/{{id}}"]
    bodies = [
        collection["post"]["requestBody"]["content"],
        collection["post"]["responses"]["201"]["content"],
        one["get"]["responses"]["200"]["content"],
    ]
    for content in bodies:
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert components[name]["properties"]["config"] == {"$ref": f"#/components/schemas/{config}"}
    assert components[config]["properties"]
    text = json.dumps(DOCUMENT)
    assert "x-model" not in text
    assert "patternProperties" not in text  # generators of clients leave the types of such values out
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= components.keys()
