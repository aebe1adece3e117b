"""Services: named commands that run permanently in a reserved sandbox, on any provider.

A service is a job that runs a loop: when the command ends, it is restarted after 1, 2, 5, 15 and then every
60 seconds; a run of a minute resets the delays. Its state is stored in the sandbox's HOME, one directory per
name, so it outlives turns, gateways and, by a snapshot, instances. The loop writes that state, and each
number of a name has one loop: two callers that start the same service start one. A service is suspended with
its sandbox; if that ends it, it is restarted when the sandbox is awake again (`restart_lost`). The files
belong to the account, so they are validated.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from dataclasses import dataclass, replace
from typing import Literal

from sandbox.errors import ProviderRefused, ProviderUnreachable
from sandbox.model import OUTPUT_CAP, BackgroundJob, BackgroundJobState, ExecRequest, JobReport
from sandbox.port import Sandbox

SERVICE_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
MAX_SERVICES = 5
"""The most services of one sandbox."""

PORT_TIMEOUT_SECONDS = 30.0
"""Seconds that a start waits for the port."""

RESTART_TIMEOUT_SECONDS = 5.0
"""Seconds that resuming a sandbox waits for its services to start."""

POLL_SECONDS = 0.2
_SCRIPT_TIMEOUT_SECONDS = 30.0
_DIRECTORY = '"$HOME/.dovecote/services"'

LOOP = """
tell() { printf '%s\\n' "$*" >"$d/state.new" && mv -f "$d/state.new" "$d/state"; }
mkdir -p "$d" && rm -f "$d/state" "$d/ready"
if [ -n "$command" ]; then
  printf '%s' "$command" >"$d/command.new" && mv -f "$d/command.new" "$d/command"
else
  command=$(cat "$d/command") && [ -n "$command" ] || exit 1
  echo "[started again with its sandbox]"
fi
printf '%s %s %s' "$run" "$port" "$by" >"$d/run.new" && mv -f "$d/run.new" "$d/run"
ends=0 code=0
[ "$port" = 0 ] || {
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.2; done
  : >"$d/ready"
} &
set -- 1 2 5 15 60
while :; do
  tell running "$ends" "$code" 0
  begun=$SECONDS
  bash -c "$command" </dev/null
  code=$?
  ends=$((ends + 1))
  [ $((SECONDS - begun)) -ge 60 ] && set -- 1 2 5 15 60
  echo "[ended with exit code $code; started again in $1 s]"
  tell waiting "$ends" "$code" "$1"
  sleep "$1"
  [ $# -gt 1 ] && shift
done
"""

_LIST = f"""
cd {_DIRECTORY} 2>/dev/null || exit 0
for d in */; do
  d=${{d%/}}
  [ -f "$d/run" ] || continue
  kept=no ready=no
  [ -s "$d/command" ] && kept=yes
  [ -e "$d/ready" ] && ready=yes
  printf '%s %s %s %s %s\\n' "$d" "$(head -c 32 "$d/run")" \
    "$kept" "$ready" "$(head -c 64 "$d/state" 2>/dev/null)"
done
"""

_ENTRY = re.compile(
    r"([a-z][a-z0-9-]{0,31}) (\d{1,9}) (\d{1,5}) (asked|woken) (yes|no) (yes|no)"
    r"(?: (running|waiting) (\d{1,9}) (\d{1,3}) (\d{1,2}))?"
)

ServiceState = Literal["running", "waiting", "starting", "ended"]
"""`waiting`: its command ended, and starts again after a delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The status of a service.

    `exits` counts how often its command ended, `exit_code` is the last exit code, `restart_in` the delay in
    seconds. `run` counts the starts; `restarted` means that the sandbox's resume caused the last one. A
    service that is not `enabled` was stopped, and only its number is stored.
    """

    name: str
    run: int
    port: int
    ready: bool
    state: ServiceState
    exits: int = 0
    exit_code: int = 0
    restart_in: int = 0
    restarted: bool = False
    enabled: bool = True

    @property
    def job_id(self) -> str:
        """Return the id of the job that runs it."""
        return f"service:{self.name}:{self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxServices:
    """The services of one sandbox; with `sleeps_with_sandbox` they do not keep it awake."""

    sandbox: Sandbox
    sleeps_with_sandbox: bool = True

    async def list_all(self) -> list[ServiceStatus]:
        """Return the services by name."""
        return [one for one in await self._load_all() if one.enabled]

    async def get(self, name: str) -> ServiceStatus | None:
        """Return the status of one service, or None."""
        return next((one for one in await self.list_all() if one.name == name), None)

    async def start(self, name: str, command: str, port: int = 0) -> ServiceStatus:
        """Start a service and wait for its port; a running one is left unchanged. Raises ProviderRefused."""
        status = {one.name: one for one in await self._load_all()}
        before = status.get(name)
        if before is not None and before.enabled and before.state != "ended":
            return await self._wait_ready(before)
        others = sorted(one.name for one in status.values() if one.enabled and one.name != name)
        if len(others) >= MAX_SERVICES:
            raise ProviderRefused(
                f"there are {MAX_SERVICES} services already: {', '.join(others)}; stop one first"
            )
        created = _first_run(name, port) if before is None else _next_run(before, port=port)
        await self._spawn(created, command)
        return await self._wait_ready(created)

    async def restart_lost(self) -> list[str]:
        """Restart the services that ended with their instance; return their names once they are starting."""
        ended = [one for one in (await self.list_all())[:MAX_SERVICES] if one.state == "ended"]
        begun = {one.name: _next_run(one, port=one.port, restarted=True) for one in ended}
        for one in begun.values():
            await self._spawn(one, "")
        deadline = asyncio.get_running_loop().time() + RESTART_TIMEOUT_SECONDS
        while begun and asyncio.get_running_loop().time() < deadline:
            found = {one.name: one.run for one in await self._load_all()}
            if all(found.get(one.name, 0) >= one.run for one in begun.values()):
                break
            await asyncio.sleep(POLL_SECONDS)
        return list(begun)

    async def stop(self, name: str) -> bool:
        """Stop a service and delete it; return whether there was one."""
        status = next((one for one in await self._load_all() if one.name == name), None)
        if status is None:
            return False
        await self._run_script(f"rm -f {_DIRECTORY}/{name}/command")
        await self.sandbox.stop(status.job_id)
        await self.sandbox.report(status.job_id)  # lets providers switch their idle timers on
        return status.enabled

    async def logs(self, name: str) -> JobReport | None:
        """Return the last output of a service, or None if there is none of this name."""
        status = await self.get(name)
        return await self.sandbox.report(status.job_id) if status else None

    async def _wait_ready(self, started: ServiceStatus) -> ServiceStatus:
        """Wait until it runs and its port answers, its command has ended once, or the time is up."""
        deadline = asyncio.get_running_loop().time() + PORT_TIMEOUT_SECONDS
        while True:
            found = await self.get(started.name)
            now = found if found is not None and found.run >= started.run else started
            is_up = now.state == "running" and (now.ready or not now.port)
            late = asyncio.get_running_loop().time() > deadline
            if is_up or late or now.state in ("waiting", "ended"):
                return now
            await asyncio.sleep(POLL_SECONDS)

    async def _load_all(self) -> list[ServiceStatus]:
        """Return the services that exist or were stopped."""
        found = [_parse_status(line) for line in (await self._run_script(_LIST)).splitlines()]
        return [await self._with_job_state(one) for one in found if one is not None]

    async def _with_job_state(self, stored: ServiceStatus) -> ServiceStatus:
        """Return the status as it is: the stored state applies only while the job runs."""
        if stored.enabled:
            report = await self.sandbox.report(stored.job_id)
            if report.over_quota:
                await self.sandbox.stop(stored.job_id)
            elif report.state is BackgroundJobState.RUNNING:
                return stored
        return replace(stored, ready=False, state="ended", exits=0, exit_code=0, restart_in=0)

    async def _spawn(self, service: ServiceStatus, command: str) -> None:
        """Start the service's loop; without a command the stored one is used."""
        by = "woken" if service.restarted else "asked"
        words = {"command": command, "port": str(service.port), "run": str(service.run), "by": by}
        given = "\n".join(f"{key}={shlex.quote(value)}" for key, value in words.items())
        script = f"d={_DIRECTORY}/{service.name}\n{given}\n{LOOP}"
        job = BackgroundJob(
            id=service.job_id,
            script=script,
            token=secrets.token_hex(16),
            sleeps_with_sandbox=self.sleeps_with_sandbox,
        )
        await self.sandbox.spawn(job)

    async def _run_script(self, script: str) -> str:
        result = await self.sandbox.run(
            ExecRequest(script=script, timeout=_SCRIPT_TIMEOUT_SECONDS, output_limit=OUTPUT_CAP // 16)
        )
        if not result.ok:
            detail = f"a service operation failed in the sandbox: {result.stderr[-500:]!r}"
            raise ProviderUnreachable(detail)
        return result.stdout.decode(errors="replace")


def _first_run(name: str, port: int) -> ServiceStatus:
    return ServiceStatus(name=name, run=1, port=port, ready=False, state="starting")


def _next_run(before: ServiceStatus, *, port: int, restarted: bool = False) -> ServiceStatus:
    """Return the next run of a service."""
    return replace(before, run=before.run + 1, port=port, ready=False, state="starting", restarted=restarted)


def _parse_status(line: str) -> ServiceStatus | None:
    """Parse one line of the list; return None if it is invalid."""
    match = _ENTRY.fullmatch(line.strip())
    if match is None:
        return None
    name, run, port, by, kept, ready, state, ends, code, again = match.groups()
    return ServiceStatus(
        name=name,
        run=int(run),
        port=int(port),
        ready=ready == "yes",
        state="waiting" if state == "waiting" else "running" if state else "starting",
        exits=int(ends or 0),
        exit_code=int(code or 0),
        restart_in=int(again or 0),
        restarted=by == "woken",
        enabled=kept == "yes",
    )
