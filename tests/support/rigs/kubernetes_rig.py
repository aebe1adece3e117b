"""Open the Kubernetes provider in a test: on a small API server on loopback, or on a real cluster.

`DOVECOTE_TEST_KUBECONFIG` names the kubeconfig of a cluster, which then replaces the loopback one.
`DOVECOTE_TEST_KUBERNETES_SECCOMP` names the profile of system calls on its node, if it has one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes_service import TOKEN
from sandbox.kubernetes.api import ClusterApi, open_api
from sandbox.kubernetes.objects import PODS, collection
from sandbox.kubernetes.pods import PodState, state_of
from sandbox.kubernetes.settings import KubernetesSettings
from sandbox.registry import built_in
from sandbox.testing.rig import OutsideSandbox, ProviderRig
from sandbox.testing.waiting import until
from sandbox_rigs import RigFactory
from service_processes import service_url

KUBECONFIG = os.environ.get("DOVECOTE_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("DOVECOTE_TEST_KUBERNETES_IMAGE", "python:3.12-slim")
SECCOMP = os.environ.get("DOVECOTE_TEST_KUBERNETES_SECCOMP", "")
LOOPBACK_WORDS = (
    "a loopback API server written from the vendor's documents, whose pods are processes of this machine"
)


def _rig(name: str, directory: Path, **settings: Any) -> ProviderRig:
    return ProviderRig(
        name=name,
        plugin=built_in()["kubernetes"],
        settings=KubernetesSettings.model_validate(settings),
        directory=directory,
        runs_on="a real cluster" if KUBECONFIG else LOOPBACK_WORDS,
        outside=lambda: outside_pod(KubernetesSettings.model_validate(settings)),
    )


@dataclass(kw_only=True)
class OutsidePod(OutsideSandbox):
    """A pod that no provider made."""

    api: ClusterApi
    namespace: str
    name: str

    async def state(self) -> object:
        """Return what the API server says about it."""
        pod = await self.api.request("GET", self._path)
        started = [one["state"] for one in pod["status"]["containerStatuses"]]
        metadata = {key: pod["metadata"].get(key) for key in ("uid", "labels", "annotations")}
        return (metadata, pod["spec"], pod["status"]["phase"], started)

    async def remove(self) -> None:
        """Delete it and wait for its end."""
        await self.api.delete(self._path)
        await until(self._is_gone)

    async def _is_gone(self) -> bool:
        return await self.api.find(self._path) is None

    @property
    def _path(self) -> str:
        return f"{collection(PODS, self.namespace)}/{self.name}"


@asynccontextmanager
async def outside_pod(settings: KubernetesSettings) -> AsyncIterator[OutsidePod]:
    """Run a pod that is none of a provider's, and delete it afterwards."""
    name, keep = f"somebody-elses-{secrets.token_hex(4)}", "while :; do sleep 1000; done"
    container = {
        "name": "main",
        "image": settings.image,
        "command": ["bash", "-c", keep],
        "resources": {"limits": {"cpu": "1", "memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "files", "mountPath": "/mnt/workspaces"}],
    }
    user = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"owner": "somebody-else"}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "files", "emptyDir": {}}],
            "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 0,
        },
    }
    async with open_api(settings) as api:
        await api.create(collection(PODS, settings.namespace), pod)
        outside = OutsidePod(api=api, namespace=settings.namespace, name=name)
        path = f"{collection(PODS, settings.namespace)}/{name}"

        async def runs() -> bool:
            return state_of(await api.find(path)) is PodState.RUNNING

        await until(runs)
        try:
            yield outside
        finally:
            await outside.remove()


def _loopback(module: str) -> RigFactory:
    return lambda directory: _rig(module, directory, api_url=service_url(module), token=TOKEN)


def _cluster(controller: str, **settings: str) -> RigFactory:
    chosen = {"kubeconfig": KUBECONFIG, "image": IMAGE, "controller": controller, **settings}
    return lambda directory: _rig(f"cluster_{controller}", directory, **chosen)


def attacked_variants() -> dict[str, RigFactory]:
    """Return rigs for hostile attempts, which only a real cluster can hold, by filter of system calls."""
    if not KUBECONFIG:
        return {}
    profiles = {"runtime_filter": "", **({"own_filter": SECCOMP} if SECCOMP else {})}
    return {name: _cluster("off", seccomp_profile=profile) for name, profile in profiles.items()}


LOOPBACK = {"pods": _loopback("kubernetes_pods_service")}
"""The sandboxes of the controller are the same pods, so a gate runs one of the two."""
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    LOOPBACK["sandboxes"] = _loopback("kubernetes_service")

VARIANTS: dict[str, RigFactory] = (
    {"cluster_pods": _cluster("off"), "cluster_sandboxes": _cluster("require")} if KUBECONFIG else LOOPBACK
)
