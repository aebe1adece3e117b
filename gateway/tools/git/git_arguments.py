"""Check the arguments of the Git tools, and build commands in which none of them can be an option.

Every value is quoted for the shell. A directory begins with `./`, paths stand after `--`, and names of
branches and remotes and addresses cannot begin with a dash. Git takes paths literally, never asks for a
password, and uses only the protocols that the tools accept.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tools.files.file_arguments import MAX_PATH_LENGTH
from gateway.tools.tool import InvalidArguments, str_argument

MAX_PATHS = 200
MAX_MESSAGE = 20_000
PROTOCOLS = ("https", "http", "git")

DIRECTORY_SCHEMA = {"type": "string", "description": "the repository's directory in the workspace"}
PATHS_SCHEMA = {"type": "array", "items": {"type": "string"}, "description": "paths in the repository"}

_LETTER = r"[^\x00-\x20\x7f~^:?*\[\\]"
_NAME = re.compile(rf"(?!.*(?:\.\.|//|@\{{|\.lock(?:/|$)|/\.|[./]$))(?![-./]){_LETTER}{{1,200}}")
"""A branch or a remote, by the rules of git-check-ref-format(1)."""

_ANCESTOR = re.compile(r"(?:[~^][0-9]{0,4}){1,5}$")
"""The end of a commit such as `HEAD~2`."""

_URL = re.compile(r"(https?|git)://(?P<host>[^/@\s\x00-\x1f?#-][^/@\s\x00-\x1f?#]*)/[^\s\x00-\x1f]{1,2000}")
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ALLOW_PROTOCOL": ":".join(PROTOCOLS),
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
}


def git_command(directory: str, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a shell command that runs git with these words in a directory of the workspace."""
    given = {**_ENVIRONMENT, **(environment or {})}
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())
    return f"exec env {assigned} git -C {shlex.quote(directory)} {shlex.join(words)}"


def directory_argument(args: Mapping[str, Any], *, required: bool = False) -> str:
    """Return the argument `directory` as a path that begins with `./`; raises InvalidArguments."""
    given = str_argument(args, "directory", required=required) or "."
    return plain_path(given, "directory")


def plain_path(path: str, name: str) -> str:
    """Return a relative path that begins with `./`; raises InvalidArguments."""
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise InvalidArguments(f"{name} must be a path inside the workspace, without .., not {path[:200]!r}")
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidArguments(f"{name} has more than {MAX_PATH_LENGTH} characters")
    return path if path == "." else f"./{path.removeprefix('./')}"


def paths_argument(args: Mapping[str, Any]) -> Sequence[str]:
    """Return the argument `paths`, none if it is absent; raises InvalidArguments."""
    given = args.get("paths") or []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidArguments(f"paths must be a list of texts, not {given!r}")
    if len(given) > MAX_PATHS:
        raise InvalidArguments(f"paths has more than {MAX_PATHS} entries: name a directory instead")
    return [plain_path(one, "paths") for one in given]


def name_argument(args: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return a branch or a remote; raises InvalidArguments for what git could take for anything else."""
    given = str_argument(args, name, required=False) or default
    if given and not _NAME.fullmatch(given):
        raise InvalidArguments(f"{name} must be the name of a branch or a remote, not {given[:200]!r}")
    return given


def commit_argument(args: Mapping[str, Any], name: str) -> str:
    """Return a branch, a tag or a commit, such as `HEAD~2`, or nothing; raises InvalidArguments."""
    given = str_argument(args, name, required=False)
    if given and not _NAME.fullmatch(_ANCESTOR.sub("", given[:300])):
        raise InvalidArguments(f"{name} must be a branch, a tag or a commit, not {given[:200]!r}")
    return given


def url_argument(args: Mapping[str, Any]) -> str:
    """Return the address of a repository; raises InvalidArguments, also for one with a password."""
    given = str_argument(args, "url")
    if _URL.fullmatch(given):
        return given
    if "@" in given.split("?")[0]:
        raise InvalidArguments("url must not contain a user or a password: the account's credentials log in")
    raise InvalidArguments(f"url must be https://HOST/PATH, http:// or git://, not {given[:200]!r}")


def message_argument(args: Mapping[str, Any]) -> str:
    """Return the message of a commit; raises InvalidArguments."""
    message = str_argument(args, "message")
    if not message.strip() or "\0" in message or len(message) > MAX_MESSAGE:
        raise InvalidArguments(f"message must have 1 to {MAX_MESSAGE} characters and no NUL")
    return message
