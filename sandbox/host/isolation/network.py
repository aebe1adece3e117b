"""Connect sandboxes to the internet by a network namespace of their own, never by the host's."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from egress.addresses import IpNetwork, machine_addresses
from sandbox.host.isolation.repeated_probe import RepeatedProbe
from sandbox.host.settings import HostSettings
from sandbox.network.network_filter import batch, parse_name_servers, rules

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin"
_OPTIONS = ("--quiet", "--foreground", "--ipv4-only", "--config-net")
_NO_PORTS = ("-t", "none", "-u", "none", "-T", "none", "-U", "none", "--no-map-gw")
"""Forward no ports and block the gateway address, so that the host's loopback is unreachable."""

_ATTACH = (sys.executable, "-I", "-S", str(Path(__file__).with_name("attach_network.py")))
RESOLVER = Path("/etc/resolv.conf")
TIMEOUT_SECONDS = 10.0
MAX_ERROR_LENGTH = 300
MAX_ERROR_BYTES = 64 * 1024

REMEDY = (
    "install pasta (Debian: passt), let the gateway use /dev/net/tun, and see `dovecote doctor`; "
    "or use network.mode deny-all, or another provider. The packet filter needs a kernel with nf_tables: "
    "without it filter the network in the machine's firewall, and set `network_filter = false`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Networking:
    """The way to connect sandboxes. Without `pasta` there are none: they would share the host's network."""

    pasta: tuple[str, ...] = ()
    resolver: Path | None = None
    is_filtered: bool = True
    reachable: tuple[IpNetwork, ...] = ()
    detail: str = "no pasta was found on this host (Debian: passt)"

    @property
    def isolated(self) -> bool:
        """Return whether networked sandboxes are possible here."""
        return bool(self.pasta)

    def wrapper(self) -> list[str]:
        """Return the command line before that of bubblewrap; it blocks the host's present addresses."""
        closed = (",".join(f"{address}/32" for address in own_addresses()), self._packet_filter())
        return [*_ATTACH, *self.pasta, "--", *closed]

    def _packet_filter(self) -> str:
        """Return the messages that load the filter, in base64; nothing if the operator wants none."""
        if not self.is_filtered:
            return ""
        named = self.resolver.read_text(encoding="utf-8", errors="replace") if self.resolver else ""
        wanted = rules(
            name_servers=parse_name_servers(named), reachable=self.reachable, machine=machine_addresses()
        )
        return base64.b64encode(batch(wanted)).decode()


def own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of this host, except loopback, at which its services listen."""
    found = (one for one in machine_addresses() if isinstance(one, IPv4Address))
    return tuple(str(one) for one in found if not one.is_loopback)


def _find(
    chosen: Path | None,
    probe_command: tuple[str, ...],
    *,
    is_filtered: bool = True,
    reachable: tuple[IpNetwork, ...] = (),
) -> Networking:
    """Return what this host offers for networked sandboxes, tested by running `probe_command`."""
    resolver = RESOLVER.resolve() if RESOLVER.exists() else None
    program = str(chosen) if chosen else shutil.which("pasta", path=_PATH)
    if program is None:
        return Networking(resolver=resolver)
    found = Networking(
        pasta=(program, *_OPTIONS, *_NO_PORTS),
        resolver=resolver,
        is_filtered=is_filtered,
        reachable=reachable,
        detail=program,
    )
    problem = _probe_error(found.wrapper(), probe_command)
    if problem is not None:
        return Networking(resolver=resolver, detail=f"{program} does not work here: {problem}")
    return found


find = RepeatedProbe(_find, works=lambda found: found.isolated)


def find_for(settings: HostSettings, probe_command: tuple[str, ...]) -> Networking:
    """Return what this host offers for networked sandboxes, as the operator wants it."""
    return find(
        settings.network_helper,
        probe_command,
        is_filtered=settings.network_filter,
        reachable=settings.reachable,
    )


def _probe_error(wrapper: list[str], probe_command: tuple[str, ...]) -> str | None:
    """Run an empty sandbox in a networked namespace and return the last error line, or None.

    Bubblewrap gets a descriptor, as in a real run: one that pasta closed would be missed only there.
    """
    arguments = os.memfd_create("arguments")
    try:
        os.write(arguments, b"--setenv\0PROBE\0network\0")
        os.lseek(arguments, 0, os.SEEK_SET)
        binary, *rest = probe_command
        return _error_of([*wrapper, binary, "--args", str(arguments), *rest], arguments)
    finally:
        os.close(arguments)


def _error_of(argv: list[str], descriptor: int) -> str | None:
    """Run a command to its end, with `descriptor`, and return its last errors, or None.

    A pasta that fails leaves a process behind which keeps the file of its errors open: so that is no pipe,
    whose end would be waited for, and the processes that are left are killed.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's program
                argv,
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        try:
            code = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return "it does not end"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        message = errors.read(MAX_ERROR_BYTES)
    if code == 0:
        return None
    return _last_lines(message.decode(errors="replace")) or f"exit code {code}"


def _last_lines(errors: str) -> str:
    """Return the last two errors: as root the last one says only that pasta failed, the other one why.

    Where there is no syslog, pasta complains of that beside each error.
    """
    lines = [line.strip() for line in errors.splitlines() if line.strip() and "syslog" not in line]
    return "; ".join(lines[-2:])[:MAX_ERROR_LENGTH]
