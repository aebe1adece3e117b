"""The page that `pytest --provider-table FILE` writes: the suite's promises by the providers it ran for."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandbox.testing.rig import ProviderRig
from sandbox.testing.suite import ProviderContract

PROPERTY = "provider-table"
"""The name under which a test's report carries its cell."""

NOT_SELECTED = "the command of this page did not select it"
_HEAD = "| Promise |"
_ENTRY = pytest.StashKey[dict[str, Any]]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of one promise with one provider; `words` says why where it did not simply pass."""

    outcome: str
    words: str = ""


def promises() -> Mapping[str, str]:
    """Return the suite's tests in their order, each with the first line of its docstring."""
    found: dict[str, str] = {}
    for part in ProviderContract.__mro__:
        for name, test in vars(part).items():
            if name.startswith("test_"):
                found.setdefault(name, (test.__doc__ or name).strip().splitlines()[0])
    return found


def column_of(item: pytest.Item) -> str:
    """Return the name of the provider that a test runs for: the parameter of `rig`, or the plugin's name."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    rig = _rig_of(item)
    return str(parameters.get("rig") or (rig.plugin.name if rig else ""))


def _entry(item: pytest.Item, name: str) -> dict[str, Any]:
    rig = _rig_of(item)
    return {
        "promise": name,
        "column": column_of(item),
        "refusals": [*rig.refusals] if rig else [],
        "runs_on": rig.runs_on if rig else "",
    }


def _rig_of(item: pytest.Item) -> ProviderRig | None:
    return getattr(item, "funcargs", {}).get("rig")


@dataclass
class ProviderTable:
    """A pytest plugin that collects the outcome of each test of the suite and writes the page at the end."""

    path: Path
    command: Sequence[str]
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    runs_on: dict[str, str] = field(default_factory=dict)
    """What each provider ran on."""

    columns: dict[type, str] = field(default_factory=dict)
    """The provider of each test class whose rig has no parameter."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report of a test of the suite what the table needs; it may come from another process."""
        report = yield
        suite = getattr(item, "cls", None)
        name = getattr(item, "originalname", item.name)
        if isinstance(suite, type) and issubclass(suite, ProviderContract) and name in promises():
            if report.when != "teardown":  # which has no fixtures any more
                item.stash[_ENTRY] = _entry(item, name)
                if item.stash[_ENTRY]["column"]:
                    self.columns[suite] = item.stash[_ENTRY]["column"]
                else:  # skipped before its rig was made
                    item.stash[_ENTRY]["column"] = self.columns.get(suite, suite.__name__)
            report.user_properties.append((PROPERTY, item.stash[_ENTRY]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Enter the outcome of a test; a failure in any of its phases is a failure."""
        entry: Any = dict(report.user_properties).get(PROPERTY)
        if not isinstance(entry, dict):
            return
        column, place = entry["column"], (entry["promise"], entry["column"])
        self.runs_on[column] = entry["runs_on"] or self.runs_on.get(column, "")
        if report.failed:
            self.cells[place] = Cell(outcome="failed", words=f"failed in its {report.when}")
        elif report.skipped:
            self.cells[place] = Cell(outcome="not run", words=_reason(report))
        elif report.when == "call" and entry["refusals"]:
            self.cells[place] = Cell(outcome="refused", words="; ".join(entry["refusals"]))
        elif report.when == "call":
            self.cells[place] = Cell(outcome="passed")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page, in the process that has all reports."""
        if not hasattr(session.config, "workerinput"):
            self.path.write_text("\n".join(self.lines(datetime.now(UTC))) + "\n", encoding="utf-8")

    def lines(self, at: datetime) -> Iterator[str]:
        """Yield the page."""
        notes: dict[str, int] = {}
        runs_on = dict(sorted(self.runs_on.items()))  # with several processes they arrive in any order
        yield from (
            "# Providers of sandboxes",
            "",
            "The contract of providers, as the suite in `sandbox/testing/` found it. pytest wrote this page",
            f"on {at:%Y-%m-%d}, with this command:",
            "",
            f"```sh\npython -m pytest {shlex.join(self.command)}\n```",
            "",
            "*refused*: the provider does not have the feature, and its error is in the note. *not run*: the",
            "note has the reason. *failed* is a defect.",
            "",
            "## What they ran on",
            "",
        )
        yield from (
            _item("-", f"**{name}**: {what or 'did not run on this machine'}.")
            for name, what in runs_on.items()
        )
        yield from ("", "## Promises", "", f"{_HEAD} {' | '.join(runs_on)} |")
        yield f"|---|{'---|' * len(runs_on)}"
        for name, words in promises().items():
            cells = (self.cells.get((name, column)) for column in runs_on)
            shown = (_shown(cell or Cell(outcome="not run", words=NOT_SELECTED), notes) for cell in cells)
            yield f"| {_plain(words)} | {' | '.join(shown)} |"
        yield from ("", "## Notes", "")
        yield from (_item(f"{number}.", _plain(words)) for words, number in notes.items())


def _item(mark: str, text: str) -> str:
    """Return an entry of a list, wrapped as the prose of all documents is."""
    indent = " " * (len(mark) + 1)
    return textwrap.fill(
        f"{mark} {text}", 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    """Return a cell, with the number of its note."""
    if not cell.words:
        return cell.outcome
    return f"{cell.outcome} ({notes.setdefault(cell.words, len(notes) + 1)})"


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped."""
    words = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else report.longrepr
    return str(words).removeprefix("Skipped: ")


def _plain(text: str) -> str:
    """Return text as a cell or an entry of a list shows it."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def rows_and_columns(page: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the promises and the providers of a page."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    head = next(line for line in lines if line.startswith(_HEAD))
    columns = [cell.strip() for cell in head.strip("|").split(" | ")[1:]]
    return [line.split(" | ")[0].removeprefix("| ") for line in lines if line != head], columns


def expected_rows() -> Sequence[str]:
    """Return the promises as a page shows them."""
    return [_plain(words) for words in promises().values()]
