"""What can go wrong with a sandbox.

    SandboxError        remedy    meaning
    ├── Gone            retry     the sandbox no longer exists: make a new one and run once more
    ├── Unreachable     retry     the provider does not answer
    ├── Busy            retry     somebody else works on the sandbox, and goes on doing so
    ├── Refused         operator  the provider will not do it (quota, kernel, configuration)
    ├── Unauthorized    operator  the provider refuses our credentials
    ├── Unsafe          give_up   the path or argument leaves the sandbox
    └── Unsupported     give_up   the provider does not declare this feature

A command's own time-out is a Result, not an error.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Remedy = Literal["retry", "give_up", "operator"]


class SandboxError(Exception):
    """The sandbox could not be used."""

    remedy: ClassVar[Remedy] = "retry"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (self.__doc__ or "").strip())


class SandboxGone(SandboxError):
    """The sandbox no longer exists."""


class ProviderUnreachable(SandboxError):
    """The sandbox provider does not answer."""


class SandboxBusy(SandboxError):
    """The sandbox is in use elsewhere and did not become free in time: try again in a minute."""


class ProviderRefused(SandboxError):
    """The sandbox provider refuses."""

    remedy = "operator"


class ProviderUnauthorized(SandboxError):
    """The sandbox provider refuses our credentials."""

    remedy = "operator"


class UnsafePath(SandboxError):
    """The path leaves the workspace."""

    remedy = "give_up"


class FeatureUnsupported(SandboxError):
    """This provider does not have the feature."""

    remedy = "give_up"
