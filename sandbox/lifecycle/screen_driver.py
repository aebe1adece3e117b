"""Call the browser or the display of a sandbox: install the programs, start their service, pass a request.

What comes back was written inside the sandbox, so it is validated and bounded like any output.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sandbox import desktop
from sandbox.desktop.client import NOT_RUNNING
from sandbox.errors import ProviderRefused
from sandbox.lifecycle.services import SandboxServices
from sandbox.model import OUTPUT_CAP, ExecRequest, ExecResult
from sandbox.port import Sandbox

Program = Literal["browser", "computer"]

START_SECONDS = 30.0
"""Seconds that a service may take until it listens."""

_GRACE_SECONDS = 15.0
_MISSING = 90
_MODULES = (
    *("client.py", "fonts.py", "service.py"),
    *("cdp.py", "browser.py", "browser_actions.py", "browser_service.py"),
    *("keyboard.py", "display.py", "computer_actions.py", "computer_service.py"),
)
_DATA = ("page.js",)
_PYTHON = "exec python3 -I -S -c"
_INSTALL = """
import json, os, sys
where = os.path.join(os.environ["HOME"], sys.argv[1])
for name, text in json.load(sys.stdin).items():
    path = os.path.join(where, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenReply:
    """What a program in the sandbox answered: its fields, and the error in words, if there is one."""

    fields: Mapping[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenDriver:
    """The browser and the display of one sandbox."""

    sandbox: Sandbox
    sleeps_with_sandbox: bool = True

    async def call(self, program: Program, request: Mapping[str, Any], *, timeout: float) -> ScreenReply:
        """Pass a request to the program's service, which is started if it does not run."""
        result = await self._pass(program, request, timeout, wait=0.0)
        if result.exit_code == _MISSING:
            await self._install()
            result = await self._pass(program, request, timeout, wait=0.0)
        if result.exit_code == NOT_RUNNING:
            await self._start(program)
            result = await self._pass(program, request, timeout, wait=START_SECONDS)
        return await self._reply(program, result)

    async def stop(self, program: Program) -> bool:
        """Stop the program's service; return whether it ran."""
        return await self._services.stop(program)

    @property
    def _services(self) -> SandboxServices:
        return SandboxServices(sandbox=self.sandbox, sleeps_with_sandbox=self.sleeps_with_sandbox)

    async def _pass(
        self, program: Program, request: Mapping[str, Any], timeout: float, *, wait: float
    ) -> ExecResult:
        limit = timeout + _GRACE_SECONDS
        passed = {**request, "service": program, "timeout": timeout, "wait": wait, "limit": limit}
        return await self.sandbox.run(
            ExecRequest(
                script=_script("client"),
                stdin=json.dumps(passed).encode(),
                timeout=limit + wait + _GRACE_SECONDS,
                output_limit=OUTPUT_CAP,
            )
        )

    async def _install(self) -> None:
        script = f"{_PYTHON} {shlex.quote(_INSTALL)} {shlex.quote(_directory())}"
        content = json.dumps(_files()).encode()
        result = await self.sandbox.run(ExecRequest(script=script, stdin=content, timeout=START_SECONDS))
        if not result.ok:
            raise ProviderRefused(f"python3 is needed in the sandbox: {_last_line(result.stderr)}")

    async def _start(self, program: Program) -> None:
        status = await self._services.start(program, _script(f"{program}_service"))
        if status.state in ("waiting", "ended"):
            raise ProviderRefused(f"{program} cannot be started: {await self._reason(program)}")

    async def _reason(self, program: Program) -> str:
        report = await self._services.logs(program)
        await self._services.stop(program)
        lines = (report.output if report else b"").splitlines()
        return _last_line(b"\n".join(one for one in lines if not one.startswith(b"[ended with")))

    async def _reply(self, program: Program, result: ExecResult) -> ScreenReply:
        if result.exit_code == NOT_RUNNING:
            return ScreenReply(fields={}, error=f"{program} did not start: {await self._reason(program)}")
        try:
            fields = json.loads(result.stdout)
        except ValueError:
            fields = None
        if not result.ok or not isinstance(fields, dict):
            why = "it did not answer in time" if result.timed_out else _last_line(result.stderr)
            return ScreenReply(fields={}, error=f"{program} failed: {why}")
        error = fields.pop("error", "")
        return ScreenReply(fields=fields, error=str(error)[:2000])


@cache
def _files() -> Mapping[str, str]:
    """Return the programs by their paths below the directory they are installed in."""
    here = Path(desktop.__file__).parent
    packages = {"sandbox/__init__.py": "", "sandbox/desktop/__init__.py": ""}
    names = (*_MODULES, *_DATA)
    return {**packages, **{f"sandbox/desktop/{one}": here.joinpath(one).read_text("utf-8") for one in names}}


@cache
def _directory() -> str:
    """Return the directory below HOME that holds the programs; other programs have another one."""
    return f".dovecote/programs/{hashlib.sha256(json.dumps(_files()).encode()).hexdigest()[:16]}"


def _script(module: str) -> str:
    """Return the script that runs a program; it ends with `_MISSING` where the programs are not installed."""
    run = f"import sys; sys.path.insert(0, sys.argv[1]); from sandbox.desktop.{module} import main; main()"
    directory = f'"$HOME/{_directory()}"'
    return f"[ -f {directory}/{_LAST} ] || exit {_MISSING}\n{_PYTHON} {shlex.quote(run)} {directory}"


_LAST = f"sandbox/desktop/{_DATA[-1]}"
"""The file that is written last: where it is, all are."""


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else "no reason was given"
