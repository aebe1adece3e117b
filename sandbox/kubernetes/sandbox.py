"""A sandbox in a pod, reached by exec and resumed if it was suspended."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
)
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.exec.shell_sandbox import ShellSandbox
from sandbox.kubernetes.api import ClusterApi
from sandbox.kubernetes.egress_tunnel import PodAddress, PodEgress
from sandbox.kubernetes.errors import PodUnavailable
from sandbox.kubernetes.execution import run_program
from sandbox.kubernetes.objects import PODS, SandboxObjects, home_of
from sandbox.kubernetes.pods import OVER, PodIdentity, SandboxBackend, end_of, state_of
from sandbox.model import SandboxId

USER = "sandbox"


class PodHandle:
    """Runs programs in one pod; a call that finds it suspended resumes it and is repeated once.

    Another process may have resumed or replaced the pod; with other files the sandbox is another one.
    """

    def __init__(
        self,
        api: ClusterApi,
        backend: SandboxBackend,
        objects: SandboxObjects,
        identity: PodIdentity,
        egress: PodEgress | None = None,
    ) -> None:
        self._egress = egress
        self._api = api
        self._backend = backend
        self._objects = objects
        self._identity = identity
        self._renew_at = time.monotonic() + objects.settings.abandoned_seconds / 4

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program (see `sandbox.exec.exec_sandbox.Exec`)."""
        if time.monotonic() > self._renew_at:
            await self.renew(0.0)
        try:
            return await self._run(text, stdin, timeout)
        except PodUnavailable:
            await self._resume()
        return await self._run(text, stdin, timeout)

    async def _resume(self) -> None:
        """Start the pod unless it runs; raises SandboxGone if its files are not those of this sandbox."""
        found = await self._backend.ensure_running(self._objects, create=False)
        if found.files != self._identity.files:
            raise SandboxGone("the sandbox has been replaced by a new one")
        self._identity = found

    async def _run(self, text: str, stdin: bytes, timeout: float) -> bytes:
        pod = PodAddress(path=self._objects.ref.path(PODS), uid=self._identity.pod)
        if self._egress is not None:
            await self._egress.ensure(pod)
        try:
            return await run_program(self._api, pod.path, pod.uid, text, stdin=stdin, timeout=timeout)
        except PodUnavailable:
            raise
        except (ProviderUnreachable, ProviderRefused) as error:
            await self._check_not_ended(pod, error)
            raise

    async def _check_not_ended(self, pod: PodAddress, error: SandboxError) -> None:
        """Raise CommandInterrupted, with the cluster's reason, if the pod of a failed program has ended."""
        try:
            found = await self._api.find(pod.path)
        except SandboxError:
            return
        if found is None or found["metadata"]["uid"] != pod.uid or state_of(found) in OVER:
            raise CommandInterrupted(f"{end_of(found)}: {CommandInterrupted()}") from error

    @property
    def id(self) -> SandboxId:
        """Return the id of the sandbox."""
        return self._objects.ref.id(self._identity.files)

    async def suspend(self) -> None:
        """End the pod and keep its volume."""
        if self._egress is not None:
            await self._egress.close()
        await self._backend.suspend(self._objects.ref)

    async def renew(self, seconds: float) -> None:
        """Put off the time at which the cluster itself ends the sandbox."""
        await self._backend.renew(self._objects, seconds)
        self._renew_at = time.monotonic() + self._objects.settings.abandoned_seconds / 4


class KubernetesSandbox(ShellSandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(
        self,
        handle: PodHandle,
        objects: SandboxObjects,
        callback: CompletionCallback,
        variables: Mapping[str, str],
    ) -> None:
        spec = objects.spec
        env = {**spec.env, **variables}
        super().__init__(handle.id, handle, spec, user=USER, home=home_of(spec), env=env, callback=callback)
        self._handle = handle

    async def suspend(self) -> None:
        """End the pod and keep its volume; raises ProviderRefused while a job runs, which would end."""
        if not self._spec.persistent:
            raise ProviderRefused("only a reserved sandbox (persistent: true) has a volume to keep")
        if await self._jobs.count_running():
            raise ProviderRefused("a sandbox with a running job is not suspended")
        await self._handle.suspend()

    async def keep_alive(self, seconds: float) -> None:
        """Put off the end that the cluster itself sets to an unused sandbox."""
        await self._handle.renew(seconds)
