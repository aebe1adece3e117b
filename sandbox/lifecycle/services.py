"""Services: named commands that are kept running in a reserved sandbox, on any provider.

A service is a job of the port that runs a loop: the command is started again when it ends, after 1, 2, 5, 15
and then every 60 seconds; a minute of running begins the row anew. What it is stands in the sandbox's HOME,
one directory for each name, so that it outlives turns, gateways and, by a snapshot, machines. The loop itself
writes it, and there is one loop for each number of a name: two who start the same service start one. It
sleeps with its sandbox, and where that ends it, it is started again once the sandbox is awake (`revive`).
Files there belong to the account, so they are judged, not trusted.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from dataclasses import dataclass, replace
from typing import Literal

from sandbox.errors import Refused, Unreachable
from sandbox.model import OUTPUT_CAP, Command, Job, JobReport, JobState
from sandbox.port import Sandbox

NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
MOST = 5
"""Services of one sandbox."""

PATIENCE = 30.0
"""Seconds a start waits for the port."""

BEGINNING = 5.0
"""Seconds that waking a sandbox waits for its services to say that they have begun."""

ASKING_AGAIN = 0.2
_ANSWERING = 30.0
_PLACE = '"$HOME/.dovecote/services"'

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a service is: `ends` how often its command ended, `code` how last, `again_in` seconds it waits.

    `run` counts how often it was started; `woken`: last of all because its sandbox was awake again. One that
    is not `kept` has been stopped, and only its number is remembered.
    """

    name: str
    run: int
    port: int
    ready: bool
    state: Literal["running", "waiting", "starting", "ended"]
    ends: int = 0
    code: int = 0
    again_in: int = 0
    woken: bool = False
    kept: bool = True

    @property
    def job(self) -> str:
        """The id of the job that it is."""
        return f"service:{self.name}:{self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one sandbox. `rest`: they do not keep it awake."""

    sandbox: Sandbox
    rest: bool = True

    async def every(self) -> list[Standing]:
        """Return the services there are, by name."""
        return [one for one in await self._known() if one.kept]

    async def find(self, name: str) -> Standing | None:
        """Return how one is, None when there is none of this name."""
        return next((one for one in await self.every() if one.name == name), None)

    async def start(self, name: str, command: str, port: int = 0) -> Standing:
        """See to it that a service runs, and wait for its port; one that runs is left be. Raises Refused."""
        known = {one.name: one for one in await self._known()}
        before = known.get(name)
        if before is not None and before.kept and before.state != "ended":
            return await self._ready(before)
        others = sorted(one.name for one in known.values() if one.kept and one.name != name)
        if len(others) >= MOST:
            raise Refused(f"there are {MOST} services already: {', '.join(others)}; stop one first")
        made = _first(name, port) if before is None else _again(before, port=port)
        await self._spawn(made, command)
        return await self._ready(made)

    async def revive(self) -> list[str]:
        """Start again those that ended with their machine; returns their names, once they are under way."""
        ended = [one for one in (await self.every())[:MOST] if one.state == "ended"]
        begun = {one.name: _again(one, port=one.port, woken=True) for one in ended}
        for one in begun.values():
            await self._spawn(one, "")
        deadline = asyncio.get_running_loop().time() + BEGINNING
        while begun and asyncio.get_running_loop().time() < deadline:
            found = {one.name: one.run for one in await self._known()}
            if all(found.get(one.name, 0) >= one.run for one in begun.values()):
                break
            await asyncio.sleep(ASKING_AGAIN)
        return list(begun)

    async def stop(self, name: str) -> bool:
        """End a service and forget it; says whether there was one."""
        known = next((one for one in await self._known() if one.name == name), None)
        if known is None:
            return False
        await self._tell(f"rm -f {_PLACE}/{name}/command")
        await self.sandbox.stop(known.job)
        await self.sandbox.report(known.job)  # providers with idle timers switch them on by what this says
        return known.kept

    async def logs(self, name: str) -> JobReport | None:
        """Return what it last said, None when there is none of this name."""
        known = await self.find(name)
        return await self.sandbox.report(known.job) if known else None

    async def _ready(self, wanted: Standing) -> Standing:
        """Wait until it runs and its port answers, or it has ended once, or for as long as is bearable."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            found = await self.find(wanted.name)
            now = found if found is not None and found.run >= wanted.run else wanted
            is_up = now.state == "running" and (now.ready or not now.port)
            late = asyncio.get_running_loop().time() > deadline
            if is_up or late or now.state in ("waiting", "ended"):
                return now
            await asyncio.sleep(ASKING_AGAIN)

    async def _known(self) -> list[Standing]:
        """Return the services there are and were."""
        found = [_standing(line) for line in (await self._tell(_LIST)).splitlines()]
        return [await self._judged(one) for one in found if one is not None]

    async def _judged(self, told: Standing) -> Standing:
        """Return it as it is: what its files say holds while its job runs."""
        if told.kept:
            report = await self.sandbox.report(told.job)
            if report.overfull:
                await self.sandbox.stop(told.job)
            elif report.state is JobState.RUNNING:
                return told
        return replace(told, ready=False, state="ended", ends=0, code=0, again_in=0)

    async def _spawn(self, made: Standing, command: str) -> None:
        """Start its loop; without a command it is the one that was written down."""
        by = "woken" if made.woken else "asked"
        words = {"command": command, "port": str(made.port), "run": str(made.run), "by": by}
        given = "\n".join(f"{key}={shlex.quote(value)}" for key, value in words.items())
        script = f"d={_PLACE}/{made.name}\n{given}\n{LOOP}"
        job = Job(id=made.job, script=script, token=secrets.token_hex(16), rests=self.rest)
        await self.sandbox.spawn(job)

    async def _tell(self, script: str) -> str:
        result = await self.sandbox.run(
            Command(script=script, timeout=_ANSWERING, output_limit=OUTPUT_CAP // 16)
        )
        if not result.ok:
            raise Unreachable(f"the sandbox cannot look after services: {result.stderr[-500:]!r}")
        return result.stdout.decode(errors="replace")


def _first(name: str, port: int) -> Standing:
    return Standing(name=name, run=1, port=port, ready=False, state="starting")


def _again(before: Standing, *, port: int, woken: bool = False) -> Standing:
    """Return the next one of a name."""
    return replace(before, run=before.run + 1, port=port, ready=False, state="starting", woken=woken)


def _standing(line: str) -> Standing | None:
    """Return what a line of the list says, None for one that makes no sense."""
    match = _ENTRY.fullmatch(line.strip())
    if match is None:
        return None
    name, run, port, by, kept, ready, state, ends, code, again = match.groups()
    return Standing(
        name=name,
        run=int(run),
        port=int(port),
        ready=ready == "yes",
        state="waiting" if state == "waiting" else "running" if state else "starting",
        ends=int(ends or 0),
        code=int(code or 0),
        again_in=int(again or 0),
        woken=by == "woken",
        kept=kept == "yes",
    )
