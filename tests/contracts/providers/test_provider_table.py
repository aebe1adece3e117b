"""The page of `pytest --provider-table`, and that docs/reference/providers.md fits the suite."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from sandbox.registry import built_in
from sandbox.testing.provider_table import (
    PROPERTY,
    ProviderTable,
    expected_rows,
    promises,
    rows_and_columns,
)
from sandbox_rigs import all_rigs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "providers.md"
FIRST, SECOND, THIRD, FOURTH = list(promises())[:4]


def report(
    name: str, outcome: Literal["passed", "failed", "skipped"], *, when: Any = "call", **reported: Any
) -> pytest.TestReport:
    """Return pytest's report of a test of the suite."""
    why = ("file.py", 1, "Skipped: no engine") if outcome == "skipped" else None
    properties = {"promise": name, "column": "here", "refusals": [], "runs_on": "an engine", **reported}
    return pytest.TestReport(
        nodeid=name,
        location=("file.py", 1, name),
        keywords={},
        outcome=outcome,
        longrepr=why,
        when=when,
        user_properties=[(PROPERTY, properties)],
    )


def test_each_outcome_has_its_cell(tmp_path: Path) -> None:
    """Passed, refused in words, not run with the reason, failed, and one that was not selected."""
    table = ProviderTable(tmp_path / "page.md", ["-k", "two words"])
    table.pytest_runtest_logreport(report(FIRST, "passed"))
    table.pytest_runtest_logreport(report(SECOND, "passed", refusals=["no such feature"]))
    table.pytest_runtest_logreport(report(THIRD, "skipped", when="setup", runs_on=""))
    table.pytest_runtest_logreport(report(FOURTH, "passed"))
    table.pytest_runtest_logreport(report(FOURTH, "failed", when="teardown"))
    lines = list(table.lines(datetime(2026, 11, 23, tzinfo=UTC)))
    cells = [line.rpartition(" | ")[2] for line in lines if line.startswith("| ")]
    outcomes = ["passed |", "refused (1) |", "not run (2) |", "failed (3) |", "not run (4) |"]
    assert cells[:6] == ["here |", *outcomes]
    assert "1. no such feature" in lines
    assert "2. no engine" in lines
    assert "- **here**: an engine." in lines
    assert "```sh\npython -m pytest -k 'two words'\n```" in lines
    assert rows_and_columns("\n".join(lines)) == (expected_rows(), ["here"])


def test_every_promise_is_said_in_words_of_its_own() -> None:
    """A row of the page is the first line of a test's docstring, and no two rows are the same."""
    rows = expected_rows()
    assert len(set(rows)) == len(rows) > 40
    assert not [row for row in rows if row.startswith("test_")]


def test_the_committed_page_has_each_promise_and_provider() -> None:
    """A new promise or provider needs the page to be written again, with the command that it names."""
    rows, columns = rows_and_columns(PAGE.read_text(encoding="utf-8"))
    assert rows == expected_rows(), "write docs/reference/providers.md again"
    assert {column.partition("-")[0] for column in columns} == set(built_in())
    on_loopback = {name for name in all_rigs() if not name.startswith("kubernetes-cluster")}
    assert not {*on_loopback} - {*columns, "docker-podman", "kubernetes-sandboxes"}
    assert "| failed (" not in PAGE.read_text(encoding="utf-8")
