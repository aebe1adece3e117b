"""A running Linux instance that the gateway did not create, with a plain exec as the only way in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sandbox.config import WORKSPACES_ROOT
from sandbox.errors import ProviderRefused
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.exec.exec_sandbox import Exec
from sandbox.exec.shell_sandbox import ShellSandbox
from sandbox.model import SandboxId, SandboxSpec

PROBE_TIMEOUT_SECONDS = 30.0
_NEEDED = "bash base64 env find grep head mkfifo mktemp setsid sleep split stat tail tar"
"""The programs that runs, jobs and the sync of files use."""

_PROBE = f"""
for needed in {_NEEDED}; do
  command -v "$needed" >/dev/null || lacks="$lacks $needed"
done
home=${{HOME:-/tmp}}
[ -d "$home" ] && [ -w "$home" ] || home=/tmp
printf '%s\\n' "$lacks" "$(id -u)" "$(id -g)" "$(id -un 2>/dev/null || id -u)" "$home" "$PATH"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceUser:
    """The user that commands of an instance run as, by its own account."""

    uid: int
    gid: int
    name: str
    home: str
    path: str


async def probe_user(run: Exec, name: str) -> InstanceUser:
    """Return the user of an instance; raises ProviderRefused if it lacks the programs that runs need."""
    output = await run(_PROBE, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
    lines = [*output.decode(errors="replace").splitlines(), "", "", "", "", "", ""]
    if lines[0].strip():
        lacks = ", ".join(lines[0].split())
        raise ProviderRefused(f"the external sandbox {name!r} lacks {lacks}: install them there")
    uid, gid = (int(text) if text.isdecimal() else 0 for text in lines[1:3])
    return InstanceUser(uid=uid, gid=gid, name=lines[3] or str(uid), home=lines[4], path=lines[5])


async def make_directory(
    run: Exec, spec: SandboxSpec, owner: InstanceUser, *, as_root: Exec | None = None
) -> None:
    """Create the working directory of a spec for a user, `as_root` if the user cannot.

    Raises ProviderRefused if it is not possible.
    """
    mount = shlex.quote(spec.mount)
    own = f"umask 022; mkdir -p {mount} 2>/dev/null; [ -w {mount} ] && echo made || echo missing"
    made = await run(own, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
    if made.strip() != b"made" and as_root is not None:
        given = f"umask 022; mkdir -p {mount} && chown {owner.uid}:{owner.gid} {mount}; true"
        await as_root(given, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
        made = await run(own, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
    if made.strip() != b"made":
        raise ProviderRefused(
            f"the directory {spec.mount} cannot be made in the external sandbox {spec.external!r}: "
            f"make {WORKSPACES_ROOT} there, writable for {owner.name}"
        )


class AttachedSandbox(ShellSandbox):
    """One external instance; several objects in several processes may represent it."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        run: Exec,
        spec: SandboxSpec,
        user: InstanceUser,
        callback: CompletionCallback = CompletionCallback(),  # noqa: B008 - a frozen value
    ) -> None:
        super().__init__(
            sandbox_id, run, spec, user=user.name, home=user.home, path=user.path, callback=callback
        )

    async def suspend(self) -> None:
        """Refuse: the gateway did not create the instance."""
        raise ProviderRefused("an external sandbox is not suspended: it belongs to who created it")
