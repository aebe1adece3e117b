"""Skills in a directory of the operator: each folder with a SKILL.md is one, with all its files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from delivery.database.engine import Connection
from gateway.records.errors import InvalidRecord
from gateway.store.accounts import agent_files as store
from sandbox.config import ConfigProblem

SKILL_FILE = "SKILL.md"
MAX_FILES = 200
MAX_FILE_BYTES = 1024 * 1024
MAX_TOTAL_BYTES = 10 * 1024 * 1024
MAX_DESCRIPTION = 1000
_POINTER = "/skills/directory"
_HEADER = re.compile(r"\A---[ \t]*\n(.*?)\n---", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:[ \t]*(\S.*)$", re.MULTILINE)


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
    return {folder.name: _read(folder) for folder in folders}


def _read(folder: Path) -> SkillFolder:
    paths = list(_files(folder))
    size = 0
    if len(paths) > MAX_FILES:
        raise _problem(f"{folder} has more than {MAX_FILES} files: remove some")
    files: dict[str, bytes] = {}
    for path in paths:
        content = _content(path)
        size += len(content)
        files[path.relative_to(folder).as_posix()] = content
    if size > MAX_TOTAL_BYTES:
        raise _problem(f"{folder} has more than {MAX_TOTAL_BYTES} bytes: remove files")
    return SkillFolder(description=describe_skill(files[SKILL_FILE]), files=files)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the plain files of a folder; links are left out, because they may lead anywhere."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


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
    """Return the `description` of a SKILL.md's header, or nothing."""
    header = _HEADER.match(document.decode(errors="replace").replace("\r\n", "\n"))
    found = _DESCRIPTION.search(header[1]) if header else None
    text = found[1].strip() if found else ""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text[:MAX_DESCRIPTION]


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
