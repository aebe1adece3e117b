"""Find the runtimes of the contract on this host: bash, python3, node, uv."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandbox.desktop import display
from sandbox.desktop.browser import PROGRAMS as BROWSERS

NAMES = ("bash", "python3", "node", "uv")
SANDBOX_DIRECTORY = "/opt/runtimes"
_SYSTEM = (Path("/usr/local/bin"), Path("/usr/bin"), Path("/bin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A program found on the host; `folder` is bound read-only below /opt/runtimes unless it is in /usr.

    The folder of a single program (uv) is the program; one with a library (node, python3) brings its prefix.
    """

    name: str
    program: Path
    folder: Path | None = None

    def binds(self) -> Iterator[str]:
        """Yield the bubblewrap arguments that mount it."""
        if self.folder is None:
            return
        inside = (
            f"{SANDBOX_DIRECTORY}/bin/{self.name}"
            if self.folder == self.program
            else f"{SANDBOX_DIRECTORY}/{self.name}"
        )
        yield from ("--ro-bind", str(self.folder), inside)

    @property
    def path(self) -> str | None:
        """Return the entry of PATH that it needs inside."""
        if self.folder is None:
            return None
        return (
            f"{SANDBOX_DIRECTORY}/bin"
            if self.folder == self.program
            else f"{SANDBOX_DIRECTORY}/{self.name}/bin"
        )


@cache
def find(directories: tuple[Path, ...] = ()) -> Sequence[Runtime]:
    """Return the runtimes found in `directories` or the usual directories."""
    return [runtime for name in NAMES if (runtime := _find(name, directories)) is not None]


def missing(found: Sequence[Runtime]) -> Sequence[str]:
    """Return the names of the contract's runtimes that were not found."""
    present = {runtime.name for runtime in found}
    return [name for name in NAMES if name not in present]


def missing_git() -> Sequence[str]:
    """Return `git` if it is not in a directory that every sandbox sees."""
    return [] if any(os.access(one / "git", os.X_OK) for one in _SYSTEM) else ["git"]


def missing_screens() -> Sequence[str]:
    """Return the runtimes that show something whose programs are not on this host."""
    browser = [] if any(os.access(one, os.X_OK) for one in BROWSERS) else ["browser"]
    return [*browser, *(["computer"] if display.find_missing() else [])]


def _find(name: str, directories: tuple[Path, ...]) -> Runtime | None:
    for directory in (*directories, *_SYSTEM, *_usual_directories()):
        program = directory / name
        if not _is_native(program):
            continue
        resolved = program.resolve()
        if resolved.is_relative_to("/usr"):
            return Runtime(name=name, program=program)
        if name == "uv":
            return Runtime(name=name, program=resolved, folder=resolved)
        if resolved.parent.name == "bin" and len(resolved.parts) > 4:  # noqa: PLR2004 - never / or a home directory
            return Runtime(name=name, program=resolved, folder=resolved.parent.parent)
    return None


def _usual_directories() -> Iterator[Path]:
    yield Path(sys.prefix) / "bin"
    with suppress(RuntimeError):  # a user without a home directory
        yield from _directories_of_home(Path.home())
    yield from (Path("/opt/node/bin"), Path("/opt/homebrew/bin"))


def _directories_of_home(home: Path) -> Iterator[Path]:
    yield from (home / ".local/bin", home / ".cargo/bin")
    yield from sorted(home.glob(".pyenv/versions/*/bin"), reverse=True)
    yield from sorted(home.glob(".nvm/versions/node/*/bin"), reverse=True)


def _is_native(program: Path) -> bool:
    """Return whether it is executable and a real program, not a shim that needs its owner's home."""
    try:
        if not os.access(program, os.X_OK):
            return False
        with program.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False
