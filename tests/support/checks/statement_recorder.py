"""Record the SQL statements that this process executes, on any database and through any engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One executed statement with parameters of its first row."""

    text: str
    parameters: Any


@dataclass(slots=True)
class StatementRecorder:
    """The statements executed so far, in order, and how many transactions were committed."""

    executed: list[Statement] = field(default_factory=list)
    commits: int = 0

    def distinct(self) -> list[Statement]:
        """Return each text once, with the parameters of its first execution."""
        return list({one.text: one for one in reversed(self.executed)}.values())

    def clear(self) -> None:
        """Forget what was recorded."""
        self.executed.clear()
        self.commits = 0


@contextmanager
def recorded_statements() -> Iterator[StatementRecorder]:
    """Record all statements until the block ends."""
    recorder = StatementRecorder()

    def on_execute(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool
    ) -> None:
        recorder.executed.append(
            Statement(text=statement, parameters=parameters[0] if executemany else parameters)
        )

    def on_commit(_connection: Any) -> None:
        recorder.commits += 1

    event.listen(Engine, "before_cursor_execute", on_execute)
    event.listen(Engine, "commit", on_commit)
    try:
        yield recorder
    finally:
        event.remove(Engine, "before_cursor_execute", on_execute)
        event.remove(Engine, "commit", on_commit)
