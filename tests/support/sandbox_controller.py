"""A stand-in for the agent-sandbox controller: turns Sandbox objects into pods and claims.

Written from the types of agents.x-k8s.io/v1beta1: operatingMode, volumeClaimTemplates (a claim is named
`<template>-<sandbox>`), shutdownTime with shutdownPolicy, and the conditions Ready and Suspended.
`python tests/support/sandbox_controller.py KUBECONFIG` runs it for a real cluster until it is stopped.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sandbox.errors import SandboxGone
from sandbox.kubernetes.api import open_api
from sandbox.kubernetes.errors import ObjectConflict
from sandbox.kubernetes.settings import KubernetesSettings

GROUP, CORE = "/apis/agents.x-k8s.io/v1beta1", "/api/v1"
MERGE_PATCH = "application/merge-patch+json"

INTERVAL_SECONDS = 0.1

Object = Mapping[str, Any]


class ApiRequest(Protocol):
    """Makes a request of the API; raises SandboxGone for 404 and ObjectConflict for 409."""

    async def __call__(
        self, method: str, path: str, *, body: Any = None, content_type: str = "application/json"
    ) -> Object:
        """Return the answer."""


class SandboxController:
    """Reconciles all Sandboxes with their pods, once per call."""

    def __init__(self, request: ApiRequest) -> None:
        self._request = request

    async def reconcile(self) -> None:
        """Look at every Sandbox once."""
        for sandbox in (await self._request("GET", f"{GROUP}/sandboxes"))["items"]:
            try:
                await self._reconcile(sandbox)
            except (SandboxGone, ObjectConflict):
                continue  # another client was faster: the next call sees it

    async def _reconcile(self, sandbox: Object) -> None:
        metadata, spec = sandbox["metadata"], sandbox["spec"]
        place = f"{GROUP}/namespaces/{metadata['namespace']}/sandboxes/{metadata['name']}"
        pod_path = f"{CORE}/namespaces/{metadata['namespace']}/pods"
        until = spec.get("shutdownTime")
        if until and datetime.fromisoformat(until) <= datetime.now(UTC):
            await self._request("DELETE", place)
            return
        pod = await self._find(f"{pod_path}/{metadata['name']}")
        running = spec.get("operatingMode", "Running") == "Running"
        if running and pod is None:
            await self._claims(sandbox)
            pod = await self._request("POST", pod_path, body=_pod(sandbox))
        elif not running and pod is not None and "deletionTimestamp" not in pod["metadata"]:
            await self._request("DELETE", f"{pod_path}/{metadata['name']}")
        status = {"conditions": _conditions(pod, running=running)}
        if sandbox.get("status") != status:
            await self._request("PATCH", f"{place}/status", body={"status": status}, content_type=MERGE_PATCH)

    async def _claims(self, sandbox: Object) -> None:
        for template in sandbox["spec"].get("volumeClaimTemplates") or ():
            claims = f"{CORE}/namespaces/{sandbox['metadata']['namespace']}/persistentvolumeclaims"
            metadata = {**template["metadata"], **_owned(sandbox, _claim_name(template, sandbox))}
            body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
            if await self._find(f"{claims}/{metadata['name']}") is None:
                await self._request("POST", claims, body={**body, "spec": template["spec"]})

    async def _find(self, path: str) -> Object | None:
        try:
            return await self._request("GET", path)
        except SandboxGone:
            return None


def _claim_name(template: Object, sandbox: Object) -> str:
    return f"{template['metadata']['name']}-{sandbox['metadata']['name']}"


def _owned(sandbox: Object, name: str) -> dict[str, Any]:
    """Return the name of a dependent and who owns it."""
    metadata = sandbox["metadata"]
    owner = {
        "apiVersion": GROUP.removeprefix("/apis/"),
        "kind": "Sandbox",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {"name": name, "namespace": metadata["namespace"], "ownerReferences": [owner]}


def _pod(sandbox: Object) -> dict[str, Any]:
    template = sandbox["spec"]["podTemplate"]
    volumes = [
        {
            "name": claim["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": _claim_name(claim, sandbox)},
        }
        for claim in sandbox["spec"].get("volumeClaimTemplates") or ()
    ]
    spec = {**template["spec"], "volumes": [*(template["spec"].get("volumes") or ()), *volumes]}
    metadata = {**template.get("metadata", {}), **_owned(sandbox, sandbox["metadata"]["name"])}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _conditions(pod: Object | None, *, running: bool) -> list[dict[str, Any]]:
    ready = running and pod is not None and (pod.get("status") or {}).get("phase") == "Running"
    reason = "DependenciesReady" if ready else "DependenciesNotReady"
    suspended = not running and pod is None
    return [
        {"type": "Ready", "status": str(ready), "reason": reason if running else "SandboxSuspended"},
        {
            "type": "Suspended",
            "status": str(suspended),
            "reason": "PodTerminated" if suspended else "PodNotTerminated",
        },
    ]


async def run(kubeconfig: Path) -> None:
    """Reconcile the Sandboxes of a real cluster until it is stopped."""
    async with open_api(KubernetesSettings(kubeconfig=kubeconfig)) as api:
        controller = SandboxController(api.request)
        while True:
            await controller.reconcile()
            await asyncio.sleep(INTERVAL_SECONDS)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
