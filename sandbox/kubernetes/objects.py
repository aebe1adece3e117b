"""Build the objects of a sandbox from a spec and the operator's settings; pure functions.

A sandbox is a pod, and if it is reserved also a claim of a volume with its HOME and its workspace. All
objects of a sandbox have one name, derived from its label, so that the cluster rejects a second one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.kubernetes.settings import IpNetwork, KubernetesSettings
from sandbox.labels import key_of
from sandbox.model import SandboxId, SandboxSpec

PREFIX = "dovecote-"
CONTAINER = "sandbox"
UID_LENGTH, NO_FILES = 16, "none"
POD_VARIABLE = "DOVECOTE_POD"
"""The variable of the container with the pod's uid; runs do not see it."""

HOME, WORKSPACES, TEMPORARY = "/home/sandbox", "/mnt/workspaces", "/tmp"  # noqa: S108 - inside the pod
VOLUME = "home"
CONTROLLER_GROUP = "agents.x-k8s.io/v1beta1"

MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "dovecote"
SANDBOX_LABEL = "dovecote.dev/sandbox"
LABEL, CONFIG_DIGEST = "dovecote.dev/label", "dovecote.dev/config"
NETWORK_MODE = "dovecote.dev/network"
"""The annotation of a pod with the network mode that it was made for."""

SELECTOR = f"{MANAGED_BY}={MANAGER},{SANDBOX_LABEL}"

_INIT_SCRIPT = "trap 'exit 0' TERM INT; while :; do sleep 2147483647 & wait $!; done"
"""The container's first process: it reaps orphans and ends at once when the pod is deleted."""
_GRACE_SECONDS = 2
_LIFETIME_MARGIN = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRef:
    """The place of a sandbox in the cluster."""

    namespace: str
    name: str

    def id(self, files: str) -> SandboxId:
        """Return the id of the sandbox that has these files: `<namespace>.<name>.<uid of claim or pod>`.

        A sandbox that is made again has the same name and other files, so it has another id.
        """
        return SandboxId(f"{self.namespace}.{self.name}.{files.replace('-', '')[:UID_LENGTH] or NO_FILES}")

    @property
    def claim(self) -> str:
        """Return the name of its claim, which is the one that the agent-sandbox controller chooses."""
        return f"{VOLUME}-{self.name}"

    def path(self, kind: str) -> str:
        """Return the API path of one of its objects."""
        return f"{collection(kind, self.namespace)}/{self.claim if kind == CLAIMS else self.name}"


PODS, CLAIMS, POLICIES, SANDBOXES = (
    "pods",
    "persistentvolumeclaims",
    "networkpolicies",
    "sandboxes",
)
NAMESPACES = "/api/v1/namespaces"
_GROUPS = {
    PODS: "/api/v1",
    CLAIMS: "/api/v1",
    POLICIES: "/apis/networking.k8s.io/v1",
    SANDBOXES: f"/apis/{CONTROLLER_GROUP}",
}


def collection(kind: str, namespace: str = "") -> str:
    """Return the API path of the objects of a kind in a namespace, or in all of them."""
    return f"{_GROUPS[kind]}/namespaces/{namespace}/{kind}" if namespace else f"{_GROUPS[kind]}/{kind}"


def ref_of(spec: SandboxSpec, settings: KubernetesSettings) -> SandboxRef:
    """Return where the sandbox of a spec is."""
    name = PREFIX + key_of("sandbox", spec.label)
    return SandboxRef(namespace=namespace_of(spec, settings), name=name)


def namespace_of(spec: SandboxSpec, settings: KubernetesSettings) -> str:
    """Return the namespace of a spec's sandbox: the operator's, or the account's own."""
    if not (settings.namespace_per_account and spec.account):
        return settings.namespace
    return f"{settings.namespace}-{key_of('namespace', spec.account)}"


def account_namespace(name: str) -> dict[str, Any]:
    """Return the namespace of an account; it takes only pods that need no privileges."""
    labels = {MANAGED_BY: MANAGER, "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def parse_id(sandbox_id: str, settings: KubernetesSettings) -> SandboxRef:
    """Return the place of an id; raises SandboxGone for one that is not ours, so that none becomes a path."""
    namespace, name, _files = (*sandbox_id.split(".", 2), "", "")[:3]
    suffix = name.removeprefix(PREFIX)
    account = namespace.removeprefix(settings.namespace)
    known = account == "" or account.removeprefix("-").isalnum()
    if suffix == name or not (suffix.isascii() and suffix.isalnum() and known and account.isascii()):
        raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")
    return SandboxRef(namespace=namespace, name=name)


def validate_spec(spec: SandboxSpec, settings: KubernetesSettings) -> None:
    """Raise ProviderRefused for a spec that cannot be created."""
    if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
        raise ProviderRefused("the namespace must be one plain path component")
    for name, value in spec.env.items():
        if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
            raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")
    _check_networks(spec, settings)
    image = image_of(spec, settings)
    if image != settings.image and image not in settings.images:
        known = ", ".join((settings.image, *settings.images))
        raise ProviderRefused(f"the image {image!r} is not one the operator allows: {known}")


def _check_networks(spec: SandboxSpec, settings: KubernetesSettings) -> None:
    for network in allowed_networks(spec):
        if any(is_within(network, blocked) for blocked in settings.blocked_networks):
            raise ProviderRefused(
                f"allowCidrs: {network} is within blocked_networks of [sandbox.kubernetes]: leave it out"
            )


def is_within(inner: IpNetwork, outer: IpNetwork) -> bool:
    """Return whether a network is a part of another one."""
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def allowed_networks(spec: SandboxSpec) -> Sequence[IpNetwork]:
    """Return the networks that a spec names; raises ProviderRefused for a text that is none."""
    try:
        return [ip_network(text, strict=False) for text in spec.allow_cidrs]
    except ValueError as error:
        raise ProviderRefused(f"allowCidrs: {error}: write a network as in 192.0.2.0/24") from error


def home_of(spec: SandboxSpec) -> str:
    """Return the directory that is HOME."""
    wanted = spec.options.get("persistent_home")
    return wanted if isinstance(wanted, str) else HOME


def image_of(spec: SandboxSpec, settings: KubernetesSettings) -> str:
    """Return the image to use."""
    return str(spec.options.get("image") or settings.image)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxObjects:
    """The objects of one sandbox as the API expects them."""

    ref: SandboxRef
    spec: SandboxSpec
    settings: KubernetesSettings
    callback_url: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of every object of the sandbox."""
        return {MANAGED_BY: MANAGER, SANDBOX_LABEL: self.ref.name}

    def metadata(self, name: str, **annotations: str) -> dict[str, Any]:
        """Return the metadata of an object, with our label as an annotation."""
        own = {LABEL: self.spec.label, **annotations}
        return {"name": name, "namespace": self.ref.namespace, "labels": self.labels, "annotations": own}

    @property
    def config_digest(self) -> str:
        """Return a digest of the pod's description and its network; a pod with another one is not reused."""
        described = json.dumps([self._pod_spec(), self._network()], sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:32]

    def fit(self, found: Mapping[str, Any]) -> bool:
        """Return whether an existing pod or Sandbox may be used: it has this description, or any will do."""
        return self.spec.as_created or annotation(found, CONFIG_DIGEST) == self.config_digest

    def _network(self) -> list[Any]:
        """Return what the network policy depends on."""
        settings = self.settings
        blocked = [str(network) for network in settings.blocked_networks]
        pods = [settings.callback_namespace, settings.callback_pods]
        callback = [self.callback_url, str(settings.callback_address), *pods]
        return [self.spec.network, self.spec.allow_cidrs, blocked, callback]

    def claim(self) -> dict[str, Any]:
        """Return the claim of the volume with HOME and workspace."""
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": self.metadata(self.ref.claim),
            "spec": self._claim_spec(),
        }

    def pod(self) -> dict[str, Any]:
        """Return the pod; a pod that outlives the gateway ends at the end of its lifetime."""
        volumes = [{"name": VOLUME, "persistentVolumeClaim": {"claimName": self.ref.claim}}]
        spec = self._pod_spec()
        if self.spec.persistent:
            spec["volumes"] = [*volumes, *spec["volumes"]]
        spec["activeDeadlineSeconds"] = int(self.spec.max_lifetime) + _LIFETIME_MARGIN
        metadata = self.metadata(self.ref.name, **self._made_for())
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _made_for(self) -> dict[str, str]:
        """Return the annotations that say which description a pod has."""
        return {CONFIG_DIGEST: self.config_digest, NETWORK_MODE: str(self.spec.network)}

    def sandbox(self, now: datetime) -> dict[str, Any]:
        """Return the Sandbox object of the agent-sandbox controller."""
        kept = {"name": VOLUME, "labels": self.labels, "annotations": {LABEL: self.spec.label}}
        claims = [{"metadata": kept, "spec": self._claim_spec()}]
        return {
            "apiVersion": CONTROLLER_GROUP,
            "kind": "Sandbox",
            "metadata": self.metadata(self.ref.name, **{CONFIG_DIGEST: self.config_digest}),
            "spec": {
                "podTemplate": self.pod_template(),
                "volumeClaimTemplates": claims if self.spec.persistent else [],
                "service": False,
                "operatingMode": "Running",
                "shutdownTime": self.shutdown_time(now),
                "shutdownPolicy": "Delete",
            },
        }

    def pod_template(self) -> dict[str, Any]:
        """Return the pod as a Sandbox describes it."""
        annotations = {LABEL: self.spec.label, **self._made_for()}
        return {"metadata": {"labels": self.labels, "annotations": annotations}, "spec": self._pod_spec()}

    def shutdown_time(self, now: datetime, seconds: float = 0.0) -> str:
        """Return when the cluster itself ends the sandbox unless it is used again before."""
        lifetime = self.spec.max_lifetime if self.spec.persistent else seconds
        until = now.astimezone(UTC) + timedelta(seconds=lifetime + self.settings.abandoned_seconds)
        return until.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _claim_spec(self) -> dict[str, Any]:
        size = float(self.spec.options.get("persistent_disk_gb") or self.settings.home_gb)
        named = {"storageClassName": self.settings.storage_class} if self.settings.storage_class else {}
        resources = {"requests": {"storage": f"{int(size * 1024)}Mi"}}
        return {"accessModes": ["ReadWriteOnce"], "resources": resources, **named}

    def _pod_spec(self) -> dict[str, Any]:
        settings = self.settings
        optional = {
            "runtimeClassName": settings.runtime_class,
            "serviceAccountName": settings.service_account,
            "nodeSelector": dict(settings.node_selector),
            "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
            "hostAliases": self._host_aliases(),
        }
        return {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "sandbox",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": settings.user,
                "runAsGroup": settings.user,
                "fsGroup": settings.user,
                "seccompProfile": self._seccomp_profile(),
            },
            "containers": [self._container()],
            "volumes": self._volumes(),
            **{name: value for name, value in optional.items() if value},
        }

    def _seccomp_profile(self) -> dict[str, str]:
        """Return the filter of system calls: the operator's file on the nodes, else the runtime's own."""
        path = self.settings.seccomp_profile
        return {"type": "Localhost", "localhostProfile": path} if path else {"type": "RuntimeDefault"}

    def _container(self) -> dict[str, Any]:
        return {
            "name": CONTAINER,
            "image": image_of(self.spec, self.settings),
            "imagePullPolicy": self.settings.image_pull_policy,
            "command": ["sh", "-c", _INIT_SCRIPT],
            "workingDir": home_of(self.spec),
            "env": [{"name": POD_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
            "resources": self._resources(),
            "volumeMounts": self._mounts(),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": self.settings.read_only_root,
                "capabilities": {"drop": ["ALL"]},
            },
        }

    def _resources(self) -> dict[str, Any]:
        spec, settings = self.spec, self.settings
        disk = float(spec.options.get("disk_gb") or settings.disk_gb)
        limits = {
            "cpu": _millis(spec.cpus),
            "memory": f"{spec.memory_mb}Mi",
            "ephemeral-storage": f"{int(disk * 1024)}Mi",
        }
        requests = {
            "cpu": _millis(min(spec.cpus, settings.cpu_request)),
            "memory": f"{min(spec.memory_mb, settings.memory_request_mb)}Mi",
        }
        return {"limits": limits, "requests": requests}

    def _mounts(self) -> list[dict[str, Any]]:
        """Return the mounts; HOME and the workspace of a reserved sandbox share one volume."""
        places = {"home": home_of(self.spec), "workspaces": WORKSPACES}
        own = [{"name": TEMPORARY.strip("/"), "mountPath": TEMPORARY}]
        if not self.spec.persistent:
            return [*own, *({"name": name, "mountPath": place} for name, place in places.items())]
        shared = [{"name": VOLUME, "mountPath": place, "subPath": name} for name, place in places.items()]
        return [*own, *shared]

    def _volumes(self) -> list[dict[str, Any]]:
        """Return the volumes that end with the pod."""
        names = ["tmp"] if self.spec.persistent else ["tmp", "home", "workspaces"]
        return [{"name": name, "emptyDir": {}} for name in names]

    def _host_aliases(self) -> list[dict[str, Any]]:
        """Return the gateway's name and address, so that a pod without DNS finds it."""
        host = urlsplit(self.callback_url).hostname
        address = self.settings.callback_address
        if not host or address is None or host == str(address):
            return []
        return [{"ip": str(address), "hostnames": [host]}]


def annotation(found: Mapping[str, Any], name: str) -> str:
    """Return an annotation of an object."""
    return str(((found.get("metadata") or {}).get("annotations") or {}).get(name) or "")


def is_ending(found: Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted."""
    return bool((found.get("metadata") or {}).get("deletionTimestamp"))


def conditions(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the conditions that an object's status has."""
    return (found.get("status") or {}).get("conditions") or ()


def _millis(cpus: float) -> str:
    return f"{max(1, int(cpus * 1000))}m"
