"""Adapters stay small: what they share belongs into channels/inbox, what a library does into none."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

CHANNELS = Path(__file__).parents[2] / "channels"
WEBHOOK_LIMIT = 600
"""Lines of code of an adapter of a webhook platform, without its simulator, comments and docstrings."""

EXAMPLE_LIMITS = {"channel-example/loft_channel.py": 60, "provider-example/directory_provider.py": 100}
"""Limits of what an author copies: what more it needed would belong into the framework."""

PRESENT = {"telegram": 2060, "slack": 2700, "discord": 2800, "github": 700}
"""Limits of the larger adapters, a little above their present lines: lower these, and raise none.

GitHub has two APIs, and threads, owners and issues that move: that is more than a message inbox.
"""

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
ADAPTERS = sorted(path.parent.name for path in CHANNELS.glob("*/probe.py"))


def count_code_lines(source: str) -> int:
    """Count the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_no_larger_than_its_limit(adapter: str) -> None:
    """A new webhook platform fits into 600 lines of code."""
    files = [path for path in (CHANNELS / adapter).rglob("*.py") if "simulator" not in path.parts]
    total = sum(count_code_lines(path.read_text()) for path in files)
    assert total <= PRESENT.get(adapter, WEBHOOK_LIMIT)


def test_the_guide_has_the_limits() -> None:
    """Each adapter is in the table with its own limit."""
    guide = (CHANNELS.parent / "docs" / "guide" / "writing-a-channel.md").read_text()
    rows = re.findall(r"^\| (\w+)[^|]*\| ([\d,]+) \|$", guide, re.MULTILINE)
    shown = {name.lower(): int(limit.replace(",", "")) for name, limit in rows}
    assert shown == {adapter: PRESENT.get(adapter, WEBHOOK_LIMIT) for adapter in ADAPTERS}


@pytest.mark.parametrize("example", EXAMPLE_LIMITS)
def test_an_example_adapter_is_short(example: str) -> None:
    """An author writes only what is specific to a platform."""
    source = (CHANNELS.parent / "examples" / example).read_text()
    assert count_code_lines(source) <= EXAMPLE_LIMITS[example]


def test_docstrings_and_comments_are_no_code() -> None:
    """Blank lines and a docstring of several lines do not count; a text that is a value does."""
    assert (
        count_code_lines('"""A.\n\nB."""\n\n# c\nx = """1\n2"""\n\n\ndef f():\n    """D."""\n    return x\n')
        == 4
    )
