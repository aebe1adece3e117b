"""Derive keys of workspaces and reserved sandboxes from ids, without revealing the ids."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from string import ascii_lowercase

KEY_LENGTH = 26
"""130 bits in base32: short enough for a path component, long enough to avoid collisions."""

KEY_CHARACTERS = ascii_lowercase + "234567"
"""The characters of keys, each as frequent as the others (RFC 4648, section 6)."""


def key_of(*parts: str) -> str:
    """Return a lower-case base32 key of `parts`; different tuples never give the same key.

    Each part is hashed with its length, so that ("a", "bc") and ("ab", "c") differ.
    """
    sum_ = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        sum_.update(len(encoded).to_bytes(8, "big") + encoded)
    return base64.b32encode(sum_.digest()).decode().lower()[:KEY_LENGTH]


def namespace(account: str, workspace: str) -> str:
    """Return the namespace of an account's workspace: a path component that reveals neither id."""
    return key_of("workspace", account, workspace)


class Scope(StrEnum):
    """The set of calls that share one reserved sandbox."""

    WORKSPACE = "WORKSPACE"
    SESSION = "SESSION"
    USER = "USER"
    AGENT = "AGENT"
    GLOBAL = "GLOBAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The ids that a sandbox belongs to; `person` is unique only within its account."""

    account: str
    scope: Scope
    conversation: str
    agent: str = ""
    person: str = ""
    record: str | None = None
    workspace: str | None = None

    @property
    def scope_id(self) -> str:
        """Return the id that the scope selects; calls with the same one share the sandbox."""
        return {
            Scope.WORKSPACE: self.workspace or self.conversation,
            Scope.SESSION: self.conversation,
            Scope.USER: self.person,
            Scope.AGENT: self.agent,
            Scope.GLOBAL: "",
        }[self.scope]

    @property
    def namespace(self) -> str:
        """Return the namespace of the working directory: one for all who share the sandbox."""
        own = self.workspace or self.conversation
        is_own = self.workspace is not None or self.scope_id == self.conversation
        return namespace(self.account, own if is_own else f"{self.scope} {self.scope_id}")


def effective_scope(requested: str | None, *, workspace: str | None, person: str) -> Scope:
    """Return the effective scope: the requested one if its id is known, else WORKSPACE, else SESSION."""
    default = Scope.WORKSPACE if workspace else Scope.SESSION
    if requested is None or (requested == Scope.USER and not person):
        return default
    return default if requested == Scope.WORKSPACE else Scope(requested)


def installation_prefix(installation: str) -> str:
    """Return the prefix of all sandbox labels of one installation."""
    return f"dovecote-{installation}-"


def sandbox_label(
    installation: str, provider: str, owner: Owner, *, persistent: bool, read_only: bool = False
) -> str:
    """Return the label of the sandbox of this key; the result is the same in every process.

    A sandbox uses one workspace, so the workspace is always a part of the key.
    Agents that only read the workspace do not share a sandbox with those that write it.
    """
    parts = (owner.account, owner.record or "", owner.workspace or "", owner.scope, owner.scope_id)
    kind = "reserved" if persistent else "passing"
    kind += "-read-only" if read_only else ""
    return installation_prefix(installation) + key_of("sandbox", kind, provider, *parts)
