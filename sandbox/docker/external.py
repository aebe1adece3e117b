"""A container that Dovecote did not create: commands run in it by exec, as its own user."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sandbox.docker import container
from sandbox.docker.engine import Engine, ExecSpec
from sandbox.docker.errors import translate_errors
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxGone
from sandbox.exec.attached_sandbox import AttachedSandbox, make_directory, probe_user
from sandbox.exec.command_timeout import command_timeout
from sandbox.exec.scripts import program
from sandbox.model import SandboxId, SandboxSpec, external_id
from sandbox.port import Sandbox

MAX_OUTPUT_BYTES = 128 * 1024 * 1024
"""The most bytes that one program may return; more is an attack on the gateway's memory."""

_ROOT = "0:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExec:
    """Runs programs in one container, whose id is the engine's and not a name that another can take over."""

    engine: Engine
    number: SandboxId
    user: str = ""

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program (see `sandbox.exec.exec_sandbox.Exec`)."""
        place = f"/tmp/.dovecote-{secrets.token_hex(8)}"  # noqa: S108 - inside the container
        sent = f"input={place}/input\n{text}\n".encode("utf-8", "surrogateescape")
        argv = ["sh", "-c", program("receive.sh"), "dovecote", place, str(len(sent)), str(len(stdin)), ""]
        try:
            async with command_timeout(timeout):
                return await self._run(argv, sent + stdin)
        except TimeoutError as error:
            raise ProviderUnreachable(f"docker: a program did not end within {timeout:g} seconds") from error

    async def _run(self, argv: list[str], stdin: bytes) -> bytes:
        exec_spec = ExecSpec(
            argv=argv, environment=[], directory="/", stdin=True, output_limit=MAX_OUTPUT_BYTES
        )
        with translate_errors():
            execution = await self.engine.start(
                self.number, user=self.user, exec_spec=exec_spec, resume=False
            )
        try:
            code = await execution.wait(stdin)
        finally:
            await execution.close()
        result = execution.result(code)
        if code != 0 or result.stdout_truncated:
            message = result.stderr[-500:].decode(errors="replace").strip()
            raise ProviderRefused(f"docker: a program ended with {code}: {message}")
        return result.stdout


async def attach_container(engine: Engine, spec: SandboxSpec) -> Sandbox:
    """Return a running container that is none of the gateway's; raises SandboxGone, ProviderRefused."""
    details = await engine.inspect(SandboxId(spec.external))
    labels = details["Config"].get("Labels") or {}
    if container.LABEL in labels or container.is_container_id(str(details["Name"]).lstrip("/")):
        raise ProviderRefused(f"{spec.external!r} is a sandbox of a gateway, not an external one")
    state = details["State"]
    if state.get("Dead") or state.get("Status") == "removing":
        raise SandboxGone("it is being removed")
    if state.get("Paused") or not state.get("Running"):
        raise ProviderRefused(
            f"the external sandbox {spec.external!r} is {state.get('Status') or 'stopped'}: its owner must "
            "start it; the gateway neither starts nor stops it"
        )
    number = SandboxId(str(details["Id"]))
    run = ContainerExec(engine=engine, number=number)
    user = await probe_user(run, spec.external)
    as_root = ContainerExec(engine=engine, number=number, user=_ROOT)
    await make_directory(run, spec, user, as_root=as_root)
    return AttachedSandbox(external_id(spec.external, number), run, spec, user)
