"""The command checks take time linear in the script's length, whatever a person or a model sends."""

from __future__ import annotations

import gc
import shlex
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.exec.command_lint import _words, missing_runtime, path_outside_workspace

CEILING_SECONDS = 2.0
"""CPU seconds that no script of up to 4 KiB may take; the costliest one takes 0.01 here."""

RATIO = 64.0
"""Sixteen times the text costs sixteen times the work; quadratic work would cost 256 times."""

HOSTILE: dict[str, Callable[[int], str]] = {
    "heredoc without an end": lambda size: "echo <<" + "A" * (size // 2) + "\n" * (size // 2),
    "heredocs without ends": lambda size: "<<A\n" * (size // 4),
    "heredocs on one line": lambda size: "<<A " * (size // 8) + "\n" + "A\n" * (size // 4),
    "heredoc and blank lines": lambda size: "<<A\n" + " \n" * (size // 2),
    "heredoc and blanks": lambda size: "<<" + " " * size,
    "heredocs and blanks": lambda size: "<< \t" * (size // 4),
    "open heredoc quotes": lambda size: "<<'A" * (size // 4),
    "long heredoc quote": lambda size: "<<'" + "A" * size,
    "angle brackets": lambda size: "<" * size,
    "ended heredocs": lambda size: "<<A\nA\n" * (size // 6),
    "nested heredocs": lambda size: "".join(f"<<A{n}\n" for n in range(size // 6)) + "A1\nA0\n",
    "one word": lambda size: "a" * size,
    "words": lambda size: "a " * (size // 2),
    "single quotes": lambda size: "''" * (size // 2),
    "open single quotes": lambda size: "'a\n" * (size // 3),
    "open double quote": lambda size: '"' + "a\\" * (size // 2),
    "open double quotes": lambda size: '"aaaa' * (size // 5),
    "escapes": lambda size: "\\" * size,
    "quoted escapes": lambda size: '"' + "\\\\" * (size // 2) + '"',
    "operators": lambda size: "a;" * (size // 2),
    "operator run": lambda size: ";" * size,
    "comments": lambda size: "#" * size,
    "lines of comments": lambda size: "a#\n" * (size // 3),
    "assignments": lambda size: "A=1 " * (size // 4),
    "long assignment": lambda size: "A" * size + " x",
    "prefixes": lambda size: "sudo " * (size // 5),
    "runtime name": lambda size: "python" + "3" * size + "x",
    "runtime dots": lambda size: "pypy" + "3." * (size // 2) + "x",
    "slashes": lambda size: "ls " + "/" * size + "?",
    "path of short parts": lambda size: "ls " + "/a" * (size // 2) + "?",
    "system path": lambda size: "sed /etc" + "/a" * (size // 2) + "?",
    "path of one part": lambda size: "ls /" + "a" * size + "?",
    "dots": lambda size: "ls " + "." * size,
    "almost climbing": lambda size: "ls " + "/..." * (size // 4),
    "digits": lambda size: "ls " + "0" * size,
    "scanner": lambda size: "find " + "/a?" * (size // 3),
    "commands": lambda size: "ls /a?\n" * (size // 7),
}


def _check(script: str) -> None:
    """Apply both checks as the bash tool does."""
    missing_runtime(script, ("bash",))
    path_outside_workspace(script)


def _cpu_seconds(script: str) -> float:
    """Return the CPU time of this thread for one check, without garbage collections.

    A collection visits every object of the test process, which says nothing about the check.
    """
    gc.disable()
    try:
        start = time.thread_time()
        _check(script)
        return time.thread_time() - start
    finally:
        gc.enable()


def _is_linear(small: str, large: str) -> bool:
    """Return whether the cost grows with the length, by the best of three measurements."""
    small_cost = max(_cpu_seconds(small), 0.001)
    return any(_cpu_seconds(large) <= RATIO * small_cost for _ in range(3))


@pytest.mark.parametrize("shape", HOSTILE)
def test_no_script_takes_more_than_linear_time(shape: str) -> None:
    """A hostile script of the longest command's size never takes long; the cost grows with its length."""
    small, large = (HOSTILE[shape](size) for size in (4 * 1024, 64 * 1024))
    for script in (HOSTILE[shape](1024), HOSTILE[shape](2048)):  # a cubic check ends here
        assert _cpu_seconds(script) < CEILING_SECONDS
    assert _is_linear(small, large)


@given(st.text(alphabet="ab1 \t'\"\\;&|(){}<>#/.=$-\u00e9", max_size=40))
def test_a_line_is_split_as_shlex_splits_it(line: str) -> None:
    """The linear scanner reads quotes, escapes, comments and operators as the standard library does."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|(){}")
    lexer.whitespace_split = True
    try:
        expected = list(lexer)
    except ValueError:
        expected = []
    assert _words(line) == expected
