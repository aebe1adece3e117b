"""How a sandbox reaches the internet when it may: a network namespace of its own, or the machine's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin"
RESOLVER = Path("/etc/resolv.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Networking:
    """`wrapper` is a program that runs bubblewrap in its own networked namespace; () shares the machine's."""

    wrapper: tuple[str, ...] = ()
    resolver: Path | None = None

    @property
    def isolated(self) -> bool:
        """Whether networked sandboxes have a namespace of their own."""
        return bool(self.wrapper)


def find(chosen: Path | None = None) -> Networking:
    """Return what this machine offers for networked sandboxes.

    pasta: no ports in either direction, so that neither the machine's loopback nor its other services show,
    and no mapping of the gateway's address to the host.
    """
    resolver = RESOLVER.resolve() if RESOLVER.exists() else None
    program = str(chosen) if chosen else shutil.which("pasta", path=_PATH)
    if program is None:
        return Networking(resolver=resolver)
    closed = ("-t", "none", "-u", "none", "-T", "none", "-U", "none")
    return Networking(
        wrapper=(program, "--quiet", "--config-net", "--no-map-gw", *closed, "--"), resolver=resolver
    )
