"""Sandboxes as objects of the agent-sandbox controller (agents.x-k8s.io/v1beta1).

The controller makes the pod and the claim of a Sandbox, deletes the pod while `operatingMode` is Suspended,
and deletes everything at `shutdownTime`, which each use puts off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandbox.errors import ProviderRefused, SandboxGone, SandboxOutdated
from sandbox.kubernetes.api import ClusterApi
from sandbox.kubernetes.errors import ObjectConflict
from sandbox.kubernetes.objects import (
    CONFIG_DIGEST,
    CONTROLLER_GROUP,
    PODS,
    SANDBOXES,
    SandboxObjects,
    SandboxRef,
    conditions,
    is_ending,
)
from sandbox.kubernetes.pods import (
    Pause,
    PlainPods,
    PodIdentity,
    PodState,
    SandboxBackend,
    refuse_hopeless,
    state_of,
)

RUNNING, SUSPENDED = "Running", "Suspended"
EXPIRED = "SandboxExpired"


class AgentSandboxes(SandboxBackend):
    """Sandboxes as Sandbox objects; the network policy is ours."""

    def __init__(self, api: ClusterApi, pods: PlainPods) -> None:
        self._api = api
        self._pods = pods

    async def ensure_running(self, objects: SandboxObjects, *, create: bool) -> PodIdentity:
        """Bring the Sandbox to its running state, whatever state it is in, and put off its end."""
        pause = Pause()
        async with self._pods.starting(objects.ref):
            while (pod := await self._advance(objects, create=create)) is None:
                await pause()
        await self.renew(objects, 0.0)
        return await self._pods.identity(objects, pod)

    async def _advance(self, objects: SandboxObjects, *, create: bool) -> Mapping[str, Any] | None:
        """Take one step towards a running pod; return it once it runs."""
        found = await self._api.find(objects.ref.path(SANDBOXES))
        if found is None:
            await self._create(objects, create=create)
        elif is_ending(found) or _is_expired(found):
            if not create:
                raise SandboxGone("the sandbox has expired")
            await self._api.delete(objects.ref.path(SANDBOXES))
        elif not objects.fit(found):
            if not create:
                raise SandboxOutdated("the sandbox was made with another configuration")
            await self._reconfigure(objects, found)
        elif found["spec"].get("operatingMode", RUNNING) != RUNNING:
            await self._pods.apply_policy(objects)
            await self._set_mode(objects.ref, RUNNING)
        else:
            return await self._running_pod(objects, create=create)
        return None

    async def _create(self, objects: SandboxObjects, *, create: bool) -> None:
        if not create:
            raise SandboxGone("the cluster has no such sandbox")
        if await self._api.find(objects.ref.path(PODS)) is not None:  # of a time without the controller
            await self._api.delete(objects.ref.path(PODS))
            return
        await self._pods.apply_policy(objects)
        try:
            await self._pods.create_object(SANDBOXES, objects.ref, objects.sandbox(datetime.now(UTC)))
        except ObjectConflict:  # another process was faster
            return

    async def _reconfigure(self, objects: SandboxObjects, found: Mapping[str, Any]) -> None:
        """Give the Sandbox its new pod template, unless another process has changed it."""
        metadata, spec = found["metadata"], found["spec"]
        annotations = {**(metadata.get("annotations") or {}), CONFIG_DIGEST: objects.config_digest}
        changed = {
            **found,
            "metadata": {**metadata, "annotations": annotations},
            "spec": {**spec, "podTemplate": objects.pod_template()},
        }
        await self._pods.apply_policy(objects)
        try:
            await self._api.replace(objects.ref.path(SANDBOXES), changed)
        except ObjectConflict:
            return

    async def _running_pod(self, objects: SandboxObjects, *, create: bool) -> Mapping[str, Any] | None:
        """Return the pod of the present template if it runs; the controller replaces a deleted one."""
        pod = await self._api.find(objects.ref.path(PODS))
        state = state_of(pod)
        if pod is None:
            return None
        if state is PodState.ENDED and not (create or objects.spec.persistent):
            raise SandboxGone("the pod has ended")
        if state is PodState.ENDED or not objects.fit(pod):
            await self._api.delete(objects.ref.path(PODS))
            return None
        if state is PodState.STARTING:
            refuse_hopeless(pod)
        return pod if state is PodState.RUNNING else None

    async def _set_mode(self, ref: SandboxRef, mode: str) -> None:
        await self._api.patch(ref.path(SANDBOXES), {"spec": {"operatingMode": mode}})

    async def suspend(self, ref: SandboxRef) -> None:
        """Let the controller delete the pod, and wait for its end."""
        await self._set_mode(ref, SUSPENDED)
        await self._pods.wait_until_gone(ref)

    async def renew(self, objects: SandboxObjects, seconds: float) -> None:
        """Set the time at which the controller deletes the Sandbox."""
        until = objects.shutdown_time(datetime.now(UTC), seconds)
        await self._api.patch(objects.ref.path(SANDBOXES), {"spec": {"shutdownTime": until}})

    async def delete(self, ref: SandboxRef) -> None:
        """Delete the Sandbox, so that its pod is not made again, and all that is left."""
        await self._api.delete(ref.path(SANDBOXES))
        await self._pods.delete(ref)


def _is_expired(found: Mapping[str, Any]) -> bool:
    return any(one.get("reason") == EXPIRED for one in conditions(found))


class ControllerChoice:
    """Finds out whether the cluster has the controller; if it has not, asks again after a minute."""

    ASK_AGAIN_SECONDS = 60.0

    def __init__(self, api: ClusterApi, wanted: str) -> None:
        self._api = api
        self._wanted = wanted
        self._present = False
        self._ask_at = 0.0

    async def is_present(self) -> bool:
        """Return whether Sandbox objects are used; raises ProviderRefused if the settings require them."""
        if self._wanted == "off":
            return False
        if not self._present and time.monotonic() >= self._ask_at:
            self._present = await has_controller(self._api)
            self._ask_at = time.monotonic() + self.ASK_AGAIN_SECONDS
        if not self._present and self._wanted == "require":
            raise ProviderRefused(
                f"the cluster does not serve {CONTROLLER_GROUP}: install the agent-sandbox controller, "
                'or set controller = "auto" in [sandbox.kubernetes]'
            )
        return self._present


async def has_controller(api: ClusterApi) -> bool:
    """Return whether the cluster serves Sandbox objects in the version in use."""
    group = await api.find(f"/apis/{CONTROLLER_GROUP}") or {}
    return any(one.get("name") == SANDBOXES for one in group.get("resources") or ())
