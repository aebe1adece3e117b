"""Errors of records.

RecordError              remedy    meaning
├── InvalidRecord        give_up   the config is invalid; lists where and what is allowed
├── RecordNotFound       give_up   the account has no such record
├── RecordNameTaken      give_up   the name is in use
├── InUse                give_up   other records refer to it
└── ManagedByOperator    give_up   it is defined in the operator's configuration file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from sandbox.config import ConfigProblem

_PRIVATE = frozenset({"envVars", "settings", "secret", "env_vars"})


class RecordError(Exception):
    """The record cannot be created or changed this way."""

    remedy: ClassVar[Literal["give_up"]] = "give_up"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (self.__doc__ or "").strip())


class InvalidRecord(RecordError):
    """The input is not valid."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{problem.pointer}: {problem.detail}" for problem in self.problems))


class RecordNotFound(RecordError):
    """There is no such record in this account."""


class RecordNameTaken(RecordError):
    """This name is in use."""


class InUse(RecordError):
    """Other records refer to this one."""


class ManagedByOperator(RecordError):
    """This record is defined in the operator's configuration file: change it there."""


def json_pointer(parts: Iterable[object]) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def to_problems(error: ValidationError, given: Any, *, below: str = "") -> tuple[ConfigProblem, ...]:
    """Return pydantic's errors as problems: where in `given`, what is allowed and what was given.

    A value that fits none of several types is one problem, which names all of them.
    """
    details: dict[str, list[str]] = {}
    for found in error.errors(include_url=False):
        pointer = below + json_pointer(_place(found, given))
        details.setdefault(pointer, []).append(_detail(found, below))
    return tuple(
        ConfigProblem(pointer=pointer, detail=" or: ".join(dict.fromkeys(texts)))
        for pointer, texts in details.items()
    )


def _place(found: ErrorDetails, given: Any) -> Iterator[str | int]:
    """Yield the keys that lead to an error in the input, without the names that pydantic gives to types."""
    for part in found["loc"]:
        keys = range(len(given)) if isinstance(given, list | tuple) else given
        if isinstance(keys, Mapping | range) and part in keys:
            given = given[part]
            yield part
    if found["type"] == "missing":
        yield found["loc"][-1]


def _detail(found: ErrorDetails, below: str) -> str:
    text = found["msg"].removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        return "there is no such key"
    if found["type"] == "missing":
        return "is required"
    given = found["input"]
    hidden = _PRIVATE & {*(str(part) for part in found["loc"]), *below.split("/")}
    if hidden or isinstance(given, SecretStr) or not isinstance(given, str | int | float | bool | None):
        return text
    shown = repr(given)
    return f"{text} (given: {shown if len(shown) <= 80 else shown[:77] + '…'})"  # noqa: PLR2004 - one line
