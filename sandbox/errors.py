"""The errors of sandboxes.

    SandboxError               remedy    meaning
    ├── SandboxGone            retry     the sandbox no longer exists: create a new one and repeat once
    │   ├── CommandInterrupted give_up   the same, and the command had begun: it is not repeated
    │   └── SandboxOutdated    retry     it exists as its record no longer describes it: replace it
    ├── ProviderUnreachable    retry     the provider does not answer
    │   └── OutcomeUnknown     retry     the same, and the command may have run: it is not repeated
    ├── SandboxBusy            retry     the sandbox is in use by another call or replica
    ├── FilesNotStored         retry     the call was carried out, and its files are not in the store yet
    ├── ProviderRefused        operator  the provider rejects the request (quota, kernel, configuration)
    ├── ProviderUnauthorized   operator  the provider rejects our credentials
    ├── UnsafePath             give_up   the path or argument leaves the sandbox
    └── FeatureUnsupported     give_up   the provider does not declare this feature

A command's own time-out is an ExecResult, not an error.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

Remedy = Literal["retry", "give_up", "operator"]


class SandboxError(Exception):
    """The sandbox could not be used."""

    remedy: ClassVar[Remedy] = "retry"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (self.__doc__ or "").strip())

    def to_answer(self) -> str:
        """Return what the agent reads when a tool ends with this error."""
        return f"the sandbox could not be used: {self}"


class SandboxGone(SandboxError):
    """The sandbox no longer exists."""


class CommandInterrupted(SandboxGone):
    """The sandbox ended while the command ran: check what the command did before you repeat it."""

    remedy = "give_up"


class SandboxOutdated(SandboxGone):
    """The sandbox exists, but was made with other settings than its record has now.

    It must not be replaced while something runs in it: with `SandboxSpec.as_created` it is used as it is.
    """


class ProviderUnreachable(SandboxError):
    """The sandbox provider does not answer."""


class OutcomeUnknown(ProviderUnreachable):
    """The provider does not answer, and the command may have run; `reason` is the error without that."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"{reason}: the command may have run, check what it did before you repeat it")
        self.reason = str(reason)


class SandboxBusy(SandboxError):
    """The sandbox is in use and did not become free in time: try again in a minute."""


class FilesNotStored(SandboxError):
    """The call was carried out; the workspace store does not have the files that it changed.

    `done` is what the call returned. They are stored by a later call, at the end of the turn or by the
    periodic sync. The call must not be repeated for that.
    """

    def __init__(self, reason: SandboxError, done: object) -> None:
        super().__init__(
            "the call was carried out, do not repeat it; the files that it changed are only in the sandbox"
            f" until they can be stored: {reason}"
        )
        self.done = done

    def to_answer(self) -> str:
        """Return the message alone: the sandbox was used."""
        return str(self)


class ProviderRefused(SandboxError):
    """The sandbox provider rejected the request."""

    remedy = "operator"


class ProviderUnauthorized(SandboxError):
    """The sandbox provider rejected our credentials."""

    remedy = "operator"


class UnsafePath(SandboxError):
    """The path leaves the workspace."""

    remedy = "give_up"


class FeatureUnsupported(SandboxError):
    """This provider does not have the feature."""

    remedy = "give_up"


ErrorTable = Sequence[tuple[type[BaseException], type[SandboxError]]]
"""Our error for each class of a vendor's client; the first matching row applies."""


REFUSALS = frozenset(range(400, 500)) - {408, 409, 423, 425, 429}
"""HTTP statuses with which a control plane refuses a request that is refused again when it is repeated."""


@contextmanager
def translate_by(table: ErrorTable, vendor: str, *, refusals: Container[int] = ()) -> Iterator[None]:
    """Translate the errors of a vendor's client; ours pass.

    An error without a row is ProviderRefused if its `status_code` is among `refusals`. Any other one is
    ProviderUnreachable: clients let errors of their own transport and parser through, and none of them may
    end a turn or the checks of other jobs.
    """
    try:
        yield
    except SandboxError:
        raise
    except Exception as error:
        other = ProviderRefused if getattr(error, "status_code", None) in refusals else ProviderUnreachable
        ours = next((ours for kind, ours in table if isinstance(error, kind)), other)
        raise ours(f"{vendor}: {str(error) or type(error).__name__}"[:500]) from error


@contextmanager
def as_interrupted() -> Iterator[None]:
    """Raise CommandInterrupted for a sandbox that was found to be gone after a command may have begun."""
    try:
        yield
    except SandboxGone as error:
        raise CommandInterrupted from error


@contextmanager
def outcome_unknown() -> Iterator[None]:
    """Raise OutcomeUnknown for a provider that does not answer after a command may have begun."""
    try:
        yield
    except OutcomeUnknown:
        raise
    except ProviderUnreachable as error:
        raise OutcomeUnknown(error) from error


@contextmanager
def repeatable() -> Iterator[None]:
    """Let a program of ours, which may run twice, be repeated: on a new sandbox, or later."""
    try:
        yield
    except CommandInterrupted as error:
        raise SandboxGone(str(error)) from error
    except OutcomeUnknown as error:
        raise ProviderUnreachable(error.reason) from error


def install_command(extra: str) -> str:
    """Return the command that installs an optional part; Dovecote is on no package index."""
    return f".venv/bin/pip install -c constraints.txt '.[{extra}]' in Dovecote's directory"
