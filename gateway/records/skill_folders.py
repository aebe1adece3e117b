"""Skills in a directory of the operator: each folder with a SKILL.md is one, with all its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from unicodedata import category

import structlog

from delivery.database.engine import Connection
from gateway.records.errors import InvalidRecord
from gateway.store.accounts import agent_files as store
from sandbox.config import ConfigProblem

log = structlog.get_logger(__name__)

SKILL_FILE = "SKILL.md"
MAX_FILES = 200
MAX_FILE_BYTES = 1024 * 1024
MAX_TOTAL_BYTES = 10 * 1024 * 1024
MAX_PATH_LENGTH = 500
MAX_DESCRIPTION = 1000
_POINTER = "/skills/directory"
_MARK = "---"
_KEY = "description:"
_BLOCKS = ("|", ">")
_UNSTORABLE = ("Cc", "Cs")
"""Unicode's categories of control characters, and of bytes that are not UTF-8."""

_ESCAPED_QUOTES = {'"': '\\"', "'": "''"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFolder:
    """A skill: what the model reads about it, and its files by path."""

    description: str
    files: Mapping[str, bytes] = field(repr=False)


def read_skill_folders(directory: Path | None) -> dict[str, SkillFolder]:
    """Return the skills below a directory, by name; raises InvalidRecord for what cannot be a skill."""
    if directory is None:
        return {}
    if not directory.is_dir():
        raise _problem(f"{directory} is not a directory: create it, or correct skills.directory")
    folders = sorted(path.parent for path in directory.glob(f"*/{SKILL_FILE}") if path.is_file())
    return {folder.name: _read(folder) for folder in folders if not _is_hidden(folder.name)}


def warn_of_undescribed(skills: Mapping[str, SkillFolder]) -> None:
    """Log the skills of which a model sees only the name."""
    for name, skill in skills.items():
        if not skill.description:
            remedy = f"agents see only its name: add a header with a `description` to its {SKILL_FILE}"
            log.warning("skill.undescribed", skill=name, remedy=remedy)


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _read(folder: Path) -> SkillFolder:
    paths = list(_files(folder))
    size = 0
    if len(paths) > MAX_FILES:
        raise _problem(f"{folder} has more than {MAX_FILES} files: remove some")
    files: dict[str, bytes] = {}
    for path in paths:
        content = _content(path)
        size += len(content)
        files[_name(path, folder)] = content
    if size > MAX_TOTAL_BYTES:
        raise _problem(f"{folder} has more than {MAX_TOTAL_BYTES} bytes: remove files")
    if SKILL_FILE not in files:
        raise _problem(f"{folder / SKILL_FILE} is a link that leads out of its folder: put the file there")
    return SkillFolder(description=describe_skill(files[SKILL_FILE]), files=files)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, and links to files in it: others may lead anywhere.

    Hidden folders are left out. They are those of tools, such as `.git`, and in a volume of a ConfigMap the
    one that the names of the files are links to.
    """
    home = folder.resolve()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for path in (Path(place, name) for name in sorted(names)):
            if path.is_file() and path.resolve().is_relative_to(home):
                yield path


def _name(path: Path, folder: Path) -> str:
    """Return the path of a file in its skill; raises InvalidRecord for one that cannot be stored."""
    name = path.relative_to(folder).as_posix()
    if len(name) > MAX_PATH_LENGTH or any(category(letter) in _UNSTORABLE for letter in name):
        raise _problem(
            f"{name!a} in {folder}: a path has at most {MAX_PATH_LENGTH} characters of UTF-8, no controls"
        )
    return name


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _problem(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise _problem(f"{path} has more than {MAX_FILE_BYTES} bytes: make it smaller")
    return content


def describe_skill(document: bytes) -> str:
    """Return the `description` of a SKILL.md's header as one line, in whichever style of YAML; or nothing."""
    first, *lines = (line.rstrip() for line in document.decode("utf-8-sig", "replace").split("\n"))
    if first != _MARK or _MARK not in lines:
        return ""
    text = " ".join(" ".join(_value(lines[: lines.index(_MARK)])).split())
    quote = text[:1]
    if quote in _ESCAPED_QUOTES and text.rfind(quote) > 0:
        text = text[1 : text.rfind(quote)].replace(_ESCAPED_QUOTES[quote], quote).strip()
    return text[:MAX_DESCRIPTION]


def _value(header: Sequence[str]) -> Sequence[str]:
    """Return the lines of the description: what is behind the key, and the indented lines below it."""
    for place, line in enumerate(header):
        if line.startswith(_KEY):
            begin = line.removeprefix(_KEY).strip()
            rest = takewhile(lambda one: not one or one[0].isspace(), header[place + 1 :])
            return [*rest] if begin.startswith(_BLOCKS) else [begin, *rest]
    return []


async def write_files(connection: Connection, record: str, wanted: Mapping[str, bytes]) -> bool:
    """Make a skill's files those of its folder; returns whether one differed."""
    present = {one.path: one.sha256 for one in await store.list_files(connection, record)}
    changed = {
        path: content
        for path, content in wanted.items()
        if present.get(path) != hashlib.sha256(content).hexdigest()
    }
    gone = [path for path in present if path not in wanted]
    for path in gone:
        await store.delete_file(connection, record, path)
    for path, content in changed.items():
        await store.write(connection, record, path, content)
    return bool(changed or gone)


def _problem(detail: str) -> InvalidRecord:
    return InvalidRecord([ConfigProblem(pointer=_POINTER, detail=detail)])
