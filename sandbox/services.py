"""Services: named commands that are kept running in a reserved sandbox, on any provider.

A service is a job of the port that runs a loop: the command is started again when it ends, after 1, 2, 5, 15
and then every 60 seconds; a minute of running begins the row anew. What it is stands in the sandbox's HOME,
one directory for each name, so that it outlives turns and gateways. Being a job, it counts as one for whoever
would put the sandbox to sleep. Files there belong to the account, so they are judged, not trusted.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from dataclasses import dataclass
from typing import Literal

from sandbox.errors import Refused, Unreachable
from sandbox.model import OUTPUT_CAP, Command, Job, JobReport, JobState
from sandbox.port import Sandbox

NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
MOST = 5
"""Services of one sandbox."""

PATIENCE = 30.0
"""Seconds a start waits for the port."""

ASKING_AGAIN = 0.5
_ANSWERING = 30.0
_PLACE = '"$HOME/.dovecote/services"'

LOOP = """
tell() { printf '%s\\n' "$*" >"$d/state.new" && mv -f "$d/state.new" "$d/state"; }
ends=0
[ "$port" = 0 ] || {
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.2; done
  : >"$d/ready"
} &
set -- 1 2 5 15 60
while :; do
  tell running "$ends" 0 0
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
cd {_PLACE} 2>/dev/null || exit 0
for d in */; do
  d=${{d%/}}
  [ -f "$d/run" ] || continue
  ready=no
  [ -e "$d/ready" ] && ready=yes
  printf '%s %s %s %s\\n' "$d" "$(head -c 32 "$d/run")" "$ready" "$(head -c 64 "$d/state" 2>/dev/null)"
done
"""

_ENTRY = re.compile(
    r"([a-z][a-z0-9-]{0,31}) (\d{1,9}) (\d{1,5}) (yes|no)"
    r"(?: (running|waiting) (\d{1,9}) (\d{1,3}) (\d{1,2}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a service is: `ends` how often its command ended, `code` how last, `again_in` seconds it waits."""

    name: str
    run: int
    port: int
    ready: bool
    state: Literal["running", "waiting", "starting", "ended"]
    ends: int = 0
    code: int = 0
    again_in: int = 0

    @property
    def job(self) -> str:
        """The id of the job that it is."""
        return f"service:{self.name}:{self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one sandbox."""

    sandbox: Sandbox

    async def every(self) -> list[Standing]:
        """Return the services there are, by name."""
        found = [_standing(line) for line in (await self._tell(_LIST)).splitlines()]
        return [await self._judged(one) for one in found if one is not None]

    async def find(self, name: str) -> Standing | None:
        """Return how one is, None when there is none of this name."""
        return next((one for one in await self.every() if one.name == name), None)

    async def start(self, name: str, command: str, port: int = 0) -> Standing:
        """See to it that a service runs, and wait for its port; one that runs is left be. Raises Refused."""
        known = {one.name: one for one in await self.every()}
        before = known.get(name)
        if before is not None and before.state != "ended":
            return await self._ready(before)
        if before is None and len(known) >= MOST:
            raise Refused(f"there are {MOST} services already: {', '.join(sorted(known))}; stop one first")
        run = before.run + 1 if before else 1
        made = Standing(name=name, run=run, port=port, ready=False, state="starting")
        await self._tell(_keeping(made))
        words = {"command": command, "port": str(port)}
        given = "\n".join(f"{key}={shlex.quote(value)}" for key, value in words.items())
        script = f"d={_PLACE}/{name}\n{given}\n{LOOP}"
        await self.sandbox.spawn(Job(id=made.job, script=script, token=secrets.token_hex(16)))
        return await self._ready(made)

    async def stop(self, name: str) -> bool:
        """End a service and forget it; says whether there was one."""
        known = await self.find(name)
        if known is None:
            return False
        await self.sandbox.stop(known.job)
        await self.sandbox.report(known.job)  # providers with idle timers switch them on by what this says
        await self._tell(f"rm -rf {_PLACE}/{name}")
        return True

    async def logs(self, name: str) -> JobReport | None:
        """Return what it last said, None when there is none of this name."""
        known = await self.find(name)
        return await self.sandbox.report(known.job) if known else None

    async def _ready(self, wanted: Standing) -> Standing:
        """Wait until it runs and its port answers, or it has ended once, or for as long as is bearable."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            now = await self.find(wanted.name) or wanted
            is_up = now.state == "running" and (now.ready or not now.port)
            late = asyncio.get_running_loop().time() > deadline
            if is_up or late or now.state in ("waiting", "ended"):
                return now
            await asyncio.sleep(ASKING_AGAIN)

    async def _judged(self, told: Standing) -> Standing:
        """Return it as it is: what its files say holds while its job runs."""
        report = await self.sandbox.report(told.job)
        if report.state is JobState.RUNNING:
            return told
        return Standing(name=told.name, run=told.run, port=told.port, ready=False, state="ended")

    async def _tell(self, script: str) -> str:
        result = await self.sandbox.run(
            Command(script=script, timeout=_ANSWERING, output_limit=OUTPUT_CAP // 16)
        )
        if not result.ok:
            raise Unreachable(f"the sandbox cannot look after services: {result.stderr[-500:]!r}")
        return result.stdout.decode(errors="replace")


def _keeping(made: Standing) -> str:
    """Return the script that notes a service; its number first, so that two who start it are of one mind."""
    return (
        f'd={_PLACE}/{made.name}\nmkdir -p "$d" && rm -f "$d/state" "$d/ready" && '
        f'printf \'%s %s\' {made.run} {made.port} >"$d/run.new" && mv -f "$d/run.new" "$d/run"'
    )


def _standing(line: str) -> Standing | None:
    """Return what a line of the list says, None for one that makes no sense."""
    match = _ENTRY.fullmatch(line.strip())
    if match is None:
        return None
    name, run, port, ready, state, ends, code, again = match.groups()
    return Standing(
        name=name,
        run=int(run),
        port=int(port),
        ready=ready == "yes",
        state="waiting" if state == "waiting" else "running" if state else "starting",
        ends=int(ends or 0),
        code=int(code or 0),
        again_in=int(again or 0),
    )
