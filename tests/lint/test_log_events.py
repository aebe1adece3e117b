"""Every line that the product logs is an event with fields, which no linter checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_trees import PACKAGES, sources

METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"log", "_log"})
EVENT = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")
OTHERS = {
    "gateway/app.py": '"ready"',
    "gateway/instrumentation.py": "str(event.type)",
}
"""The documented line of the start, and the type of an event of a conversation as the event of its line."""

LIBRARY_LOGGERS = {
    "channels/discord/api.py": "discord",
    "channels/telegram/api.py": "telegram",
    "channels/slack/session.py": "channels.slack.sdk",
    "gateway/observability/gauges.py": "",
    "gateway/observability/log_file.py": "",
    "gateway/observability/log_setup.py": "",
}
"""Modules that configure a logger of the standard library, which libraries write to."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of the product that log a line, with their files."""
    for source in sources(*PACKAGES):
        for node in source.nodes(ast.Call):
            logger, _, method = ast.unparse(node.func).rpartition(".")
            if logger in LOGGERS and method in METHODS:
                yield source.name, node


def test_a_log_line_is_an_event_with_fields() -> None:
    """The message is `noun.past_participle`; ids and errors are fields, so that a search finds them."""
    lines = list(calls())
    assert {name.split("/")[0] for name, _ in lines} >= {
        "gateway",
        "delivery",
        "channels",
        "sandbox",
        "egress",
    }
    assert not [f"{name}:{node.lineno}" for name, node in lines if not _is_event(name, node)]


def _is_event(name: str, node: ast.Call) -> bool:
    if len(node.args) != 1:
        return False
    message = node.args[0]
    if isinstance(message, ast.Constant) and EVENT.fullmatch(str(message.value)):
        return True
    return ast.unparse(message).replace("'", '"') == OTHERS.get(name)


def test_the_product_logs_with_structlog() -> None:
    """A logger of the standard library takes a text instead of an event with fields."""
    found = {
        source.name
        for source in sources(*PACKAGES)
        for node in source.nodes(ast.Call)
        if ast.unparse(node.func) == "logging.getLogger"
    }
    assert found == set(LIBRARY_LOGGERS)


def test_every_logger_is_called_log() -> None:
    """The check of events finds a logger by its name."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources(*PACKAGES)
        for node in source.nodes(ast.Assign)
        if ast.unparse(node.value).startswith("structlog.get_logger(")
        and not {ast.unparse(target) for target in node.targets} <= LOGGERS
    ]
    assert not found
