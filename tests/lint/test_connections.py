"""Every place that opens an outgoing connection is known, and those for foreign addresses are guarded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from source_trees import Source, sources

PACKAGES = ("gateway", "delivery", "channels", "sandbox", "egress", "examples")
OPENERS = frozenset(
    {
        *("ClientSession", "TCPConnector", "UnixConnector", "ws_connect"),
        *(
            "AsyncClient",
            "AsyncHTTPTransport",
            "HTTPTransport",
            "AsyncConnectionPool",
            "HTTPXRequest",
            "HTTPClient",
        ),
        *("create_async_httpx2_client", "create_client", "AsyncDaytona", "AsyncSandbox", "Docker"),
        *("urlopen", "HTTPConnection", "HTTPSConnection", "Request"),
        *("create_connection", "open_connection", "open_unix_connection"),
        *("SSLContext", "create_default_context", "create_ssl_context"),
    }
)
"""Calls and base classes that make a client, a connection or a TLS context; `Request` is that of urllib.

A TLS context takes 0.75 MB and 36 ms, so clients use the one that aiohttp makes.
"""

GUARDED = {
    "egress/sessions.py": "the factory of guarded aiohttp sessions",
    "egress/proxy/connection.py": "streams of accepted connections",
    "egress/proxy/dialer.py": "connects sandboxes to addresses that their rules allow",
    "egress/proxy/certificate_authority.py": "the TLS contexts of the proxy as a server",
    "egress/httpx2_client.py": "the guarded client of httpx2",
    "channels/slack/api.py": "a WebSocket of a guarded session",
    "channels/discord/rest.py": "discord.py's client, with a guarded session",
}
"""Clients of addresses that an account may name: they use the factories of `egress`."""

OPERATORS = {
    "gateway/agents/clients/pydantic_ai_client.py": "addresses of the operator; keys are bound to origins",
    "delivery/database/postgres.py": "the PostgreSQL servers of the operator's settings",
    "gateway/infra/nats_probe.py": "the NATS server of the operator's settings",
    "sandbox/docker/engine.py": "the engine of the operator's settings",
    "sandbox/e2b/provider.py": "the vendor's SDK, at the operator's address",
    "sandbox/e2b/sandbox.py": "the vendor's SDK, at the operator's address",
    "sandbox/daytona/provider.py": "the vendor's SDK, at the operator's address",
    "sandbox/kubernetes/api.py": "the cluster of the operator's settings",
    "sandbox/aws_lambda/api.py": "the functions of the operator's settings",
    "sandbox/aws_lambda/handler.py": "runs in the function; presigned URLs of the gateway's bucket",
    "sandbox/s3.py": "the bucket of the operator's settings",
    "gateway/web/stream/live_view.py": "ports of sandboxes, at the addresses that their providers give",
    "gateway/cli/client.py": "the gateway that the user of the command line names",
    "gateway/cli/doctor/local_checks.py": "the services of the operator's settings",
    "sandbox/exec/scripts/post.py": "runs in the sandbox, within the sandbox's network",
    "sandbox/kubernetes/egress_tunnel.py": "the gateway's own socket, with its proxy",
    "sandbox/host/jobs/post_completion.py": "the gateway's own socket or URL",
}
"""Clients of addresses that only the operator, or the user of the command line, can name."""

SAME_NAMES = {
    "delivery/database/engine.py": "opens a file of SQLite",
    "channels/testing/": "opens a channel under test",
}
"""Calls of functions of ours that have the name of an opener."""


def _openers(source: Source) -> Iterator[str]:
    named = [node.func for node in source.nodes(ast.Call)]
    named += [base for node in source.nodes(ast.ClassDef) for base in node.bases]
    for one in named:
        yield from OPENERS.intersection(_names(one))


def _names(node: ast.expr) -> Iterator[str]:
    """Yield the last two names of a dotted name: `AsyncSandbox.create` opens as `AsyncSandbox` does."""
    if isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


@cache
def _places() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for source in sources(*PACKAGES):
        if {"simulator", "tests"} & set(source.parts) or source.name.startswith(tuple(SAME_NAMES)):
            continue
        openers = set(_openers(source))
        if openers:
            found[source.name] = openers
    return found


def test_every_outgoing_connection_is_listed() -> None:
    """A new client must use the guarded factories, or be listed with the reason why it need not."""
    assert set(_places()) == set(GUARDED) | set(OPERATORS)


def test_adapters_of_platforms_build_no_client_of_their_own() -> None:
    """A channel's session, transport and connector come from `egress`."""
    for name, openers in _places().items():
        if name.startswith(("channels/", "delivery/", "examples/")) and name not in OPERATORS:
            assert openers <= {"ws_connect", "HTTPClient"}, name
