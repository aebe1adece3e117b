"""A pod that Dovecote did not create: commands run in one of its containers, as its own user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.exec.attached_sandbox import AttachedSandbox, make_directory, probe_user
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.kubernetes.api import ClusterApi
from sandbox.kubernetes.errors import PodUnavailable
from sandbox.kubernetes.execution import run_program
from sandbox.kubernetes.objects import MANAGED_BY, MANAGER, PODS, PREFIX, collection
from sandbox.kubernetes.pods import PodState, state_of
from sandbox.model import SandboxSpec, external_id
from sandbox.port import Sandbox

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""The annotation that names the container in which `kubectl exec` runs commands too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer:
    """One container of a running pod; `instance` is another one after each of its starts."""

    name: str
    instance: str


async def find_container(api: ClusterApi, path: str, name: str) -> PodContainer:
    """Return the container of a running pod; raises SandboxGone, ProviderRefused."""
    pod = await api.find(path)
    state = state_of(pod)
    if pod is None or state in {PodState.ENDED, PodState.ENDING}:
        raise SandboxGone(f"the pod {name!r} is {state}")
    metadata = pod["metadata"]
    if name.startswith(PREFIX) or (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER:
        raise ProviderRefused(f"{name!r} is a sandbox of a gateway, not an external one")
    if state is not PodState.RUNNING:
        raise ProviderRefused(
            f"the external sandbox {name!r} does not run yet: try again when its pod is ready"
        )
    chosen = (metadata.get("annotations") or {}).get(DEFAULT_CONTAINER) or pod["spec"]["containers"][0][
        "name"
    ]
    return PodContainer(name=chosen, instance=_instance(pod, chosen))


def _instance(pod: Any, container: str) -> str:
    """Return what differs between two starts of a container: their files differ too."""
    for one in pod["status"].get("containerStatuses") or ():
        if one.get("name") == container and one.get("containerID"):
            return str(one["containerID"]).rpartition("/")[2]
    return str(pod["metadata"]["uid"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExec:
    """Runs programs in one container as long as it is the same one."""

    api: ClusterApi
    path: str
    pod: str
    container: PodContainer

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program (see `sandbox.exec.exec_sandbox.Exec`)."""
        if await find_container(self.api, self.path, self.pod) != self.container:
            raise SandboxGone(f"the pod {self.pod!r} has been started again")
        try:
            return await run_program(
                self.api, self.path, "", text, stdin=stdin, timeout=timeout, container=self.container.name
            )
        except PodUnavailable as error:
            raise SandboxGone(str(error)) from error


async def attach_pod(
    api: ClusterApi, namespace: str, spec: SandboxSpec, callback: CompletionCallback
) -> Sandbox:
    """Return a running pod of the operator's namespace; raises SandboxGone, ProviderRefused."""
    path = f"{collection(PODS, namespace)}/{spec.external}"
    container = await find_container(api, path, spec.external)
    run = PodExec(api=api, path=path, pod=spec.external, container=container)
    user = await probe_user(run, spec.external)
    await make_directory(run, spec, user)
    return AttachedSandbox(external_id(spec.external, container.instance), run, spec, user, callback)
