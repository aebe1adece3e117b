"""Settings and commands in the pages for users exist, so that readers can copy them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.app import command
from gateway.config.load import load
from gateway.config.settings import InvalidSettings

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guide").rglob("*.md")])
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
IN_SHELL = re.compile(r"(?:^|[;&|(]) *\$? *(?:\S+=\S* )*(?:\S*/)?dovecote (?=(\S.*))", re.MULTILINE)
IN_PROSE = re.compile(r"`dovecote ([^`]+)`")
UNKNOWN = "there is no such setting"
PLACEHOLDERS = {"COMMAND", "0.2.0"}
"""Words in the place of a command: a placeholder, and a version."""


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield the blocks of these languages, without the indentation of their list."""
    for indentation, language, text in BLOCK.findall(page.read_text()):
        if language in languages:
            yield re.sub(f"^{indentation}", "", text, flags=re.MULTILINE).replace("\\\n", " ")


def shown_commands(page: Path) -> Iterator[str]:
    """Yield the arguments of each `dovecote` that a page runs or names."""
    for text in blocks(page, "sh", "bash", "console"):
        yield from IN_SHELL.findall(text)
    yield from IN_PROSE.findall(FENCE.sub("", page.read_text()))


def unknown_settings(text: str, directory: Path) -> list[str]:
    """Return the settings of a file that do not exist; placeholders and missing values are none."""
    (directory / "dovecote.toml").write_text(text)
    try:
        load(env={}, directory=directory)
    except InvalidSettings as invalid:
        return [str(problem) for problem in invalid.problems if UNKNOWN in str(problem)]
    return []


def first_command(line: str) -> list[str]:
    """Return the words of a line up to its first operator, such as a pipe."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    return list(takewhile(lambda word: not set(word) <= set(lexer.punctuation_chars), lexer))


def unknown_part(line: str) -> str | None:
    """Return why a line is no command, or None; arguments may be missing where a page only names it."""
    group: Any = command()
    words = first_command(line)
    while words and hasattr(group, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name in PLACEHOLDERS:
            return None
        if name not in group.commands:
            return f"there is no {name}"
        group = group.commands[name]
    known = {option for part in group.params for option in (*part.opts, *part.secondary_opts)} | {"--help"}
    wrong = [
        word
        for word in words
        if word.startswith("--") and word != "--" and word.partition("=")[0] not in known
    ]
    if wrong:
        return f"there is no option {wrong[0]}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_settings_and_commands_that_exist(page: Path, tmp_path: Path) -> None:
    """Each TOML block is a settings file with known names only, and each command and option exists."""
    files = [text for text in blocks(page, "toml") if "[project" not in text]
    assert [found for text in files for found in unknown_settings(text, tmp_path)] == []
    assert [(line, wrong) for line in shown_commands(page) if (wrong := unknown_part(line))] == []


def test_what_does_not_exist_is_found(tmp_path: Path) -> None:
    """A setting outside its table, a wrong command and a wrong option are reported."""
    assert unknown_settings('allow = ["*"]\n', tmp_path)
    assert unknown_settings('[channels.telegram]\ntoken = "…"\n', tmp_path) == []
    assert unknown_part("channel list") == "there is no channel"
    assert unknown_part("channels lst") == "there is no lst"
    assert unknown_part("channels list --all") == "there is no option --all"
    assert unknown_part("chat '!&x' | cat --all") is None
    assert unknown_part("channels pair") is None
    page = tmp_path / "page.md"
    page.write_text(
        "`dovecote one`\n\n1. A step:\n\n   ```sh\n   A=b dovecote two | cat; dovecote three\n   ```\n"
    )
    assert list(shown_commands(page)) == ["two | cat; dovecote three", "three", "one"]
