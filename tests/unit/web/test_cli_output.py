"""What commands show to people: distances of times, and what they wait for."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from datetime import UTC, datetime
from enum import StrEnum

import pytest

from command_line import run_command_line
from delivery.deliveries.attempt import DeliveryState
from gateway.cli.commands.jobs import DeliveryFilter, JobFilter
from gateway.cli.commands.turns import TurnFilter
from gateway.cli.output import relative_time
from gateway.cli.printable import clean
from gateway.cli.progress import progress
from gateway.store.job_state import JobState
from gateway.store.turn_state import TurnState

NOW = datetime(2030, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2030-01-31T11:59:18Z", "42 s ago"),
        ("2030-01-31T11:57:00.5+00:00", "2 min ago"),
        ("2030-01-31T15:30:00Z", "in 3 h"),
        ("2029-01-31T12:00:00Z", "365 d ago"),
        ("2030-01-31T12:00:00.2Z", "now"),
        ("never", "never"),
        ("2030-01-31T12:00:00", "2030-01-31T12:00:00"),
    ],
)
def test_a_time_is_shown_as_its_distance(text: str, shown: str) -> None:
    """The largest unit counts; a text that is no time stays."""
    assert relative_time(text, NOW) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None),
        ("\U0001f469\u200d\U0001f467", None),
        ("10\u202f000\u00a0€", None),
        ("一\u3000二", None),
        ("a\u200fb\n\tc", None),
        ("a\u202eb", "a\ufffdb"),
        ("a\u2066b", "a\ufffdb"),
        ("a\x1b[31m\x9b2J\r", "a\ufffd[31m\ufffd2J\ufffd"),
        ("a\u2028b", "a\ufffdb"),
    ],
    ids=["Persian", "emoji", "French", "Japanese", "Arabic", "override", "isolate", "escape", "line"],
)
def test_a_terminal_gets_text_without_commands(text: str, shown: str | None) -> None:
    """What languages and emoji need stays; what moves the cursor or turns a text around is replaced."""
    assert clean(text) == (text if shown is None else shown)


def test_warnings_of_modules_are_not_part_of_the_output() -> None:
    """A local command prints its result only; what the modules that it uses log goes to stderr."""
    program = (
        "import structlog\n"
        "from gateway.cli.group import group, local\n"
        "app = group('test')\n"
        "def work() -> None:\n"
        "    structlog.get_logger('channels').warning('channel.probe_failed', room='C1')\n"
        "    structlog.get_logger('channels').info('channel.probe_begun')\n"
        "    print('{}')\n"
        "local(app, 'work')(work)\n"
        "app()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n"
    assert "channel.probe_failed" in done.stderr
    assert "channel.probe_begun" not in done.stderr


class Terminal(io.StringIO):
    """A terminal with an event that is set when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        """Return that this is a terminal."""
        return True

    def write(self, text: str) -> int:
        """Keep the text."""
        count = super().write(text)
        self.written.set()
        return count


def test_a_long_wait_is_shown_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line appears once the patience is over, and is gone at the end."""
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with progress("reading", stream=terminal, patience=0.0) as shown:
        assert terminal.written.wait(60)
        shown.detail = "200 items"
    assert "reading …" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_nothing_is_shown_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short wait, a pipe and a dumb terminal show nothing."""
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    with progress("reading", stream=terminal), progress("inner", stream=terminal, patience=0.0):
        pass
    with progress("reading", stream=pipe, patience=0.0):
        pass
    monkeypatch.setenv("TERM", "dumb")
    with progress("reading", stream=terminal, patience=0.0):
        pass
    assert terminal.getvalue() == pipe.getvalue() == ""


@pytest.mark.parametrize(
    ("words", "options", "states"),
    [
        ("jobs list", JobFilter, JobState),
        ("turns list", TurnFilter, TurnState),
        ("deliveries list", DeliveryFilter, DeliveryState),
    ],
)
def test_a_list_takes_the_states_of_the_api_alone(
    words: str, options: type[StrEnum], states: type[StrEnum]
) -> None:
    """Another state is wrong usage with the allowed ones, and no empty list."""
    assert list(options) == list(states)
    result = run_command_line(*words.split(), "--state", "foo", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "'foo'" in result.stderr
    for state in states:
        assert state in result.stderr
