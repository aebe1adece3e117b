"""Errors of records.

RecordError              remedy    meaning
├── InvalidRecord        give_up   the config is invalid; lists where and what is allowed
├── SecretUnreadable     give_up   a stored secret cannot be decrypted; lists where and what to do
├── RecordNotFound       give_up   the account has no such record
├── RecordNameTaken      give_up   the name is in use
├── InUse                give_up   other records refer to it
├── WebhookDisabled      give_up   the webhook gets no events until it is enabled
├── WebhookOfAgent       give_up   its URL and events are in the agent's config
└── ManagedByOperator    give_up   it is defined in the operator's configuration file
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from sandbox.config import ConfigProblem


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


class SecretUnreadable(InvalidRecord):
    """A stored secret that a change keeps cannot be decrypted."""


class RecordNotFound(RecordError):
    """There is no such record in this account."""


class RecordNameTaken(RecordError):
    """This name is in use."""


class InUse(RecordError):
    """Other records refer to this one."""


class WebhookDisabled(RecordError):
    """This webhook is disabled; enable it first."""


class WebhookOfAgent(RecordError):
    """This webhook belongs to an agent: change hooks.webhook of the agent."""


class ManagedByOperator(RecordError):
    """This record is defined in the operator's configuration file: change it there."""


def json_pointer(parts: Iterable[object]) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
