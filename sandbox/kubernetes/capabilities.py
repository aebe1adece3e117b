"""Report what the cluster offers and what the gateway may do there, for `doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from sandbox.errors import SandboxError
from sandbox.kubernetes.agent_sandboxes import has_controller
from sandbox.kubernetes.api import ClusterApi, open_api
from sandbox.kubernetes.objects import CONTROLLER_GROUP
from sandbox.kubernetes.settings import KubernetesSettings
from sandbox.port import Capability

TIMEOUT_SECONDS = 15.0
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

_OBJECT_VERBS = ("get", "list", "create", "delete")
ROLE = (
    ("", "pods", _OBJECT_VERBS),
    ("", "pods/exec", ("get", "create")),
    ("", "persistentvolumeclaims", _OBJECT_VERBS),
    ("networking.k8s.io", "networkpolicies", ("list", "create", "patch", "delete")),
)
"""What the gateway does: API group, resource, verbs. The roles in deploy/kubernetes allow the same."""

CONTROLLER_ROLE = (("agents.x-k8s.io", "sandboxes", (*_OBJECT_VERBS, "patch", "update")),)
NAMESPACE_ROLE = (("", "namespaces", ("create",)),)


def capabilities(settings: KubernetesSettings) -> Sequence[Capability]:
    """Query the cluster once, in an event loop of its own, so that callers inside a loop can use it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _query(settings)).result()


async def _query(settings: KubernetesSettings) -> Sequence[Capability]:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), open_api(settings) as api:
            return [one async for one in _ask(api, settings)]
    except (SandboxError, TimeoutError) as error:
        return [
            Capability(name="isolation", present=False, detail=str(error) or "the cluster does not answer")
        ]


async def _ask(api: ClusterApi, settings: KubernetesSettings) -> AsyncIterator[Capability]:
    version = (await api.request("GET", "/version")).get("gitVersion", "?")
    runtime = settings.runtime_class or "the default runtime"
    detail = f"Kubernetes {version}, namespace {settings.namespace}; a pod for each sandbox, {runtime}"
    yield Capability(name="isolation", present=True, detail=detail)
    present = await has_controller(api)
    yield Capability(name="controller", present=present, detail=_controller_detail(settings, present=present))
    missing = [one async for one in _missing(api, settings, controller=present)]
    detail = f"the role lacks {'; '.join(missing)}" if missing else "the role allows what is needed"
    yield Capability(name="permissions", present=not missing, detail=detail)
    for one in _fixed():
        yield one


def _controller_detail(settings: KubernetesSettings, *, present: bool) -> str:
    if settings.controller == "off":
        return "not used (controller = off): sandboxes are plain pods and volume claims"
    if present:
        return f"sandboxes are Sandbox objects of {CONTROLLER_GROUP}"
    if settings.controller == "require":
        return f"the cluster does not serve {CONTROLLER_GROUP}, which controller = require needs"
    return f"the cluster does not serve {CONTROLLER_GROUP}: sandboxes are plain pods and volume claims"


async def _missing(api: ClusterApi, settings: KubernetesSettings, *, controller: bool) -> AsyncIterator[str]:
    """Yield what the gateway's role lacks, as `verbs resource`."""
    role = list(ROLE)
    role += CONTROLLER_ROLE if controller and settings.controller != "off" else ()
    role += NAMESPACE_ROLE if settings.namespace_per_account else ()
    for group, resource, verbs in role:
        denied = [verb for verb in verbs if not await _may(api, settings, group, resource, verb)]
        if denied:
            yield f"{','.join(denied)} {resource}"


async def _may(api: ClusterApi, settings: KubernetesSettings, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = {"group": group, "resource": name, "subresource": part, "verb": verb}
    if not settings.namespace_per_account:
        attributes["namespace"] = settings.namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.create(REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))


def _fixed() -> Iterator[Capability]:
    for name in ("memory", "cpu"):
        yield Capability(name=f"limit.{name}", present=True, detail="limits of the pod")
    yield Capability(
        name="limit.pids",
        present=False,
        detail="pods have none of their own: set podPidsLimit of the kubelet",
    )
    yield Capability(
        name="network",
        present=True,
        detail="a NetworkPolicy for each sandbox; the cluster's network plugin must enforce them",
    )
