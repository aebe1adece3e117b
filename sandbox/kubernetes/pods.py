"""Sandboxes as plain pods, for a cluster without the agent-sandbox controller.

A suspended sandbox is a claim without a pod. The gateway removes what is left of unused sandboxes;
`activeDeadlineSeconds` ends their processes also without the gateway.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxGone, SandboxOutdated
from sandbox.kubernetes.api import ClusterApi
from sandbox.kubernetes.errors import ObjectConflict
from sandbox.kubernetes.network_policies import network_policy
from sandbox.kubernetes.objects import (
    CLAIMS,
    NETWORK_MODE,
    PODS,
    POLICIES,
    SandboxObjects,
    SandboxRef,
    annotation,
    collection,
    conditions,
    is_ending,
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_HOPELESS = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "ImagePullBackOff",
        "RunContainerError",
    }
)


class PodState(StrEnum):
    """The state of a pod with a view to running commands in it."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    ENDING = "ending"
    """It is being deleted and its name is not free yet."""


OVER = frozenset({PodState.ABSENT, PodState.ENDED, PodState.ENDING})


def state_of(pod: Mapping[str, Any] | None) -> PodState:
    """Return the state of a pod."""
    if pod is None:
        return PodState.ABSENT
    if is_ending(pod):
        return PodState.ENDING
    status = pod.get("status") or {}
    if status.get("phase") in {"Failed", "Succeeded"}:
        return PodState.ENDED
    containers = status.get("containerStatuses") or []
    started = bool(containers) and all("running" in (one.get("state") or {}) for one in containers)
    return PodState.RUNNING if started and status.get("phase") == "Running" else PodState.STARTING


def waiting_reason(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a pod does not run yet: a reason of its container or of the scheduler, and a message."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("message") or waiting.get("reason") in _HOPELESS:
            return str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    for condition in conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason") or ""), str(condition.get("message") or "")
    return "", ""


def end_of(pod: Mapping[str, Any] | None) -> str:
    """Return why a pod ended: Evicted, NodeLost, OOMKilled or another reason of the cluster."""
    status = (pod or {}).get("status") or {}
    ends = [(one.get("state") or {}).get("terminated") or {} for one in status.get("containerStatuses") or ()]
    reasons = [str(one["reason"]) for one in (status, *ends) if one.get("reason")]
    message = str(status.get("message") or "")
    return ": ".join(["kubernetes: the pod ended", *reasons[:1], *([message[:300]] if message else [])])


class Pause:
    """Waits between two looks at the cluster, longer each time."""

    def __init__(self) -> None:
        self._seconds = _FIRST_PAUSE

    async def __call__(self) -> None:
        """Wait."""
        await asyncio.sleep(self._seconds)
        self._seconds = min(self._seconds * 1.5, _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """A running pod, and what holds the sandbox's files: its claim, or the pod itself. Both are uids.

    `network` is the network mode that the pod was made for; empty if the pod does not say.
    """

    pod: str
    files: str
    network: str = ""


class SandboxBackend(Protocol):
    """How sandboxes are represented in the cluster."""

    @abstractmethod
    async def ensure_running(self, objects: SandboxObjects, *, create: bool) -> PodIdentity:
        """Return the running pod, resumed if it was suspended; with `create`, made if there is none.

        Raises SandboxGone without `create` if there is no such sandbox, SandboxOutdated if it has another
        configuration.
        """

    @abstractmethod
    async def suspend(self, ref: SandboxRef) -> None:
        """End the pod and keep the volume."""

    @abstractmethod
    async def renew(self, objects: SandboxObjects, seconds: float) -> None:
        """Put off the time at which the cluster itself ends the sandbox."""

    @abstractmethod
    async def delete(self, ref: SandboxRef) -> None:
        """Delete all objects of a sandbox and wait for the end of its processes. Idempotent."""


class PlainPods(SandboxBackend):
    """Sandboxes as pods, claims and network policies."""

    def __init__(self, api: ClusterApi, start_timeout: float) -> None:
        self._api = api
        self._start_timeout = start_timeout

    async def ensure_running(self, objects: SandboxObjects, *, create: bool) -> PodIdentity:
        """Bring the pod to its running state, whatever state it is in."""
        pause = Pause()
        async with self.starting(objects.ref):
            while (pod := await self._advance(objects, create=create)) is None:
                await pause()
        return await self.identity(objects, pod)

    async def identity(self, objects: SandboxObjects, pod: Mapping[str, Any]) -> PodIdentity:
        """Return who a pod is; raises SandboxGone if its claim is gone."""
        spec = objects.spec
        holder: Mapping[str, Any] | None = pod
        if spec.persistent or spec.as_created:
            claim = await self._api.find(objects.ref.path(CLAIMS))
            holder = pod if claim is None and spec.as_created else claim
        if holder is None:
            raise SandboxGone("the volume of the sandbox is gone")
        network = annotation(pod, NETWORK_MODE) or ""
        return PodIdentity(pod=pod["metadata"]["uid"], files=holder["metadata"]["uid"], network=network)

    async def _advance(self, objects: SandboxObjects, *, create: bool) -> Mapping[str, Any] | None:
        """Take one step towards a running pod; return it once it runs."""
        pod = await self._api.find(objects.ref.path(PODS))
        state = state_of(pod)
        if pod is None:
            await self._create(objects, create=create)
        elif state is PodState.ENDED:
            if not create and not await self._has_claim(objects):
                raise SandboxGone("the pod has ended")
            await self._api.delete(objects.ref.path(PODS))
        elif not objects.fit(pod):
            if not create:
                raise SandboxOutdated("the pod was made with another configuration")
            await self._api.delete(objects.ref.path(PODS))
        elif state is PodState.STARTING:
            refuse_hopeless(pod)
        elif state is PodState.RUNNING:
            return pod
        return None

    async def _create(self, objects: SandboxObjects, *, create: bool) -> None:
        if not create and not await self._has_claim(objects):
            raise SandboxGone("the cluster has no such sandbox")
        await self.apply_policy(objects)
        if objects.spec.persistent and not await self._claim(objects):
            return
        try:
            await self.create_object(PODS, objects.ref, objects.pod())
        except ObjectConflict:  # another process was faster
            return

    async def _claim(self, objects: SandboxObjects) -> bool:
        """Create the claim unless it exists; return whether a pod can use it."""
        try:
            await self.create_object(CLAIMS, objects.ref, objects.claim())
        except ObjectConflict:
            return await self._has_claim(objects)
        return True

    async def _has_claim(self, objects: SandboxObjects) -> bool:
        if not objects.spec.persistent:
            return False
        claim = await self._api.find(objects.ref.path(CLAIMS))
        return claim is not None and not is_ending(claim)

    async def suspend(self, ref: SandboxRef) -> None:
        """Delete the pod and wait for its end."""
        await self._api.delete(ref.path(PODS))
        await self.wait_until_gone(ref)

    async def renew(self, objects: SandboxObjects, seconds: float) -> None:
        """Do nothing: a pod's deadline cannot be put off, so it is the end of its lifetime."""

    async def delete(self, ref: SandboxRef) -> None:
        """Delete pod and claim, and the network policy once no process is left."""
        await self._api.delete(ref.path(PODS))
        await self._api.delete(ref.path(CLAIMS))
        await self.wait_until_gone(ref)
        await self._api.delete(ref.path(POLICIES))

    async def apply_policy(self, objects: SandboxObjects) -> None:
        """Create the network policy, or change it to the present network mode."""
        policy = network_policy(objects)
        try:
            await self.create_object(POLICIES, objects.ref, policy)
        except ObjectConflict:
            await self._api.patch(objects.ref.path(POLICIES), {"spec": policy["spec"]})

    async def create_object(self, kind: str, ref: SandboxRef, body: Mapping[str, Any]) -> None:
        """Create an object; a namespace that does not exist is the operator's business."""
        try:
            await self._api.create(collection(kind, ref.namespace), body)
        except SandboxGone as error:
            raise ProviderRefused(
                f"kubernetes: {error}: create the namespace {ref.namespace!r} of [sandbox.kubernetes]"
            ) from error

    async def wait_until_gone(self, ref: SandboxRef) -> None:
        """Wait until the pod has ended and its name is free."""
        pause = Pause()
        async with self.starting(ref):
            while await self._api.find(ref.path(PODS)) is not None:
                await pause()

    @asynccontextmanager
    async def starting(self, ref: SandboxRef) -> AsyncIterator[None]:
        """Bound the time of starting or ending; the error says what the pod waits for."""
        try:
            async with asyncio.timeout(self._start_timeout):
                yield
        except TimeoutError as error:
            pod = await self._api.find(ref.path(PODS))
            waited = f"{self._start_timeout:g} seconds (start_timeout)"
            detail = f"the pod {ref.namespace}/{ref.name} is {state_of(pod)} after {waited}"
            raise ProviderUnreachable(f"kubernetes: {detail}: {_obstacle(ref, pod or {})}".strip()) from error


def _obstacle(ref: SandboxRef, pod: Mapping[str, Any]) -> str:
    """Return what a pod waits for; the end of one on a lost node waits for a person."""
    if not is_ending(pod):
        return " ".join(waiting_reason(pod))
    node = (pod.get("spec") or {}).get("nodeName") or "it ran on"
    force = f"kubectl delete pod {ref.name} --namespace {ref.namespace} --grace-period=0 --force"
    return f"the node {node} has not ended it. If that node is gone for good, run: {force}"


def refuse_hopeless(pod: Mapping[str, Any]) -> None:
    """Raise ProviderRefused for a pod that cannot start before the operator changes something."""
    reason, message = waiting_reason(pod)
    if reason in _HOPELESS:
        raise ProviderRefused(f"kubernetes: the pod does not start: {reason}: {message}")
