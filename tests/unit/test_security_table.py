"""The table of guarantees is whole and true: every promise is there, and the tests it names speak of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "guarantees.md"
IDS = [f"G{number}" for number in range(1, 19)] + [f"M{number}" for number in range(1, 21)]
ROW = re.compile(r"^\| ([GM]\d+) \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
FILE = re.compile(r"`((?:tests|bench|docs)/[\w./-]+)`")
COMMAND = re.compile(r"python -m (bench\.\w+)")


def rows() -> dict[str, tuple[str, str, str]]:
    """Return the cells of each promise's row."""
    return {found[1]: (found[2], found[3], found[4]) for found in ROW.finditer(TABLE.read_text())}


def test_every_promise_has_its_row() -> None:
    """G1 to G18 and M1 to M20, each once and in order, with no cell empty."""
    assert [found[1] for found in ROW.finditer(TABLE.read_text())] == IDS
    assert not [name for name, cells in rows().items() if not all(cell.strip() for cell in cells)]


@pytest.mark.parametrize("name", IDS)
def test_a_promises_tests_exist_and_name_it(name: str) -> None:
    """Every file of a row exists, and one of them at the least names the promise, so that grep finds it."""
    files = [ROOT / found for found in FILE.findall(rows()[name][1])]
    assert files
    assert not [str(path) for path in files if not path.is_file()]
    named = re.compile(rf"\b{name}\b|_{name.lower()}_")
    assert [path.name for path in files if named.search(path.read_text())]


def test_the_commands_exist() -> None:
    """What runs a promise at its full size is there to be run."""
    modules = set(COMMAND.findall(TABLE.read_text()))
    assert {"bench.proof", "bench.slow_clients", "bench.chats"} <= modules
    assert not [module for module in modules if not (ROOT / f"{module.replace('.', '/')}.py").is_file()]


def test_the_security_page_leads_to_the_table() -> None:
    """Who reads what is trusted finds what is shown."""
    assert "docs/guarantees.md" in (ROOT / "SECURITY.md").read_text()
