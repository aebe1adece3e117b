"""The Kubernetes provider: the sandboxes of one cluster, named by their labels' digests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sandbox.errors import SandboxGone
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.kubernetes.agent_sandboxes import AgentSandboxes, ControllerChoice
from sandbox.kubernetes.api import ClusterApi, open_api
from sandbox.kubernetes.egress_tunnel import INSIDE, PodEgress
from sandbox.kubernetes.errors import ObjectConflict
from sandbox.kubernetes.external import attach_pod
from sandbox.kubernetes.objects import (
    CLAIMS,
    LABEL,
    NAMESPACES,
    NO_FILES,
    PODS,
    POLICIES,
    SANDBOX_LABEL,
    SANDBOXES,
    SELECTOR,
    SandboxObjects,
    SandboxRef,
    account_namespace,
    allowed_networks,
    annotation,
    collection,
    parse_id,
    ref_of,
    validate_spec,
)
from sandbox.kubernetes.pods import PlainPods, PodIdentity, SandboxBackend
from sandbox.kubernetes.sandbox import KubernetesSandbox, PodHandle
from sandbox.kubernetes.settings import KubernetesSettings
from sandbox.model import Network, SandboxId, SandboxSpec
from sandbox.port import Provider, ProviderContext, Sandbox, proxy_environment


class KubernetesProvider(Provider):
    """Creates sandboxes in a cluster and connects to existing ones."""

    def __init__(self, api: ClusterApi, settings: KubernetesSettings, context: ProviderContext) -> None:
        self._api = api
        self._settings = settings
        self._context = context
        self._controller = ControllerChoice(api, settings.controller)
        self._pods = PlainPods(api, settings.start_timeout)
        self._namespaces = set[str]()
        self._controlled = AgentSandboxes(api, self._pods)
        self._egress: dict[SandboxRef, PodEgress] = {}

    async def close(self) -> None:
        """End the ways out of all pods; the sandboxes stay."""
        await asyncio.gather(*(one.close() for one in self._egress.values()))

    async def _backend(self) -> SandboxBackend:
        return self._controlled if await self._controller.is_present() else self._pods

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of the label; its name prevents a second one."""
        objects = self._objects(ref_of(spec, self._settings), spec)
        self._context.checkpoint("sandbox.create")
        backend = await self._backend()
        await self._ensure_namespace(objects.ref.namespace)
        return self._sandbox(objects, backend, await backend.ensure_running(objects, create=True))

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox, resumed if it was suspended; raises SandboxGone."""
        objects = self._objects(parse_id(sandbox_id, self._settings), spec)
        backend = await self._backend()
        sandbox = self._sandbox(objects, backend, await backend.ensure_running(objects, create=False))
        if sandbox.id != sandbox_id:
            raise SandboxGone("the sandbox has been replaced by a new one")
        return sandbox

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox with its volume, suspended or not, but none that has replaced it. Idempotent."""
        try:
            ref = parse_id(sandbox_id, self._settings)
        except SandboxGone:
            return
        await self._close_egress(ref)
        if await self._id_of(ref) in {sandbox_id, ref.id(NO_FILES)}:
            await (await self._backend()).delete(ref)

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return a pod of the operator's namespace that Dovecote did not create."""
        return await attach_pod(self._api, self._settings.namespace, spec, self._callback(spec))

    async def _id_of(self, ref: SandboxRef) -> SandboxId:
        """Return the id of the sandbox that is at a place now."""
        holder = await self._api.find(ref.path(CLAIMS)) or await self._api.find(ref.path(PODS))
        return ref.id(holder["metadata"]["uid"] if holder else NO_FILES)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes; also those of which only a volume or a network policy is left."""
        labels: dict[SandboxRef, str] = {}
        files: dict[SandboxRef, str] = {}
        namespace = "" if self._settings.namespace_per_account else self._settings.namespace
        controlled = [SANDBOXES] if await self._controller.is_present() else []
        for kind in (*controlled, POLICIES, PODS, CLAIMS):
            for one in await self._api.list(collection(kind, namespace), SELECTOR):
                metadata = one["metadata"]
                ref = SandboxRef(namespace=metadata["namespace"], name=metadata["labels"][SANDBOX_LABEL])
                labels[ref] = annotation(one, LABEL) or labels.get(ref, "")
                if kind in {PODS, CLAIMS}:
                    files[ref] = metadata["uid"]
        found = ((ref.id(files.get(ref, NO_FILES)), label) for ref, label in labels.items())
        ours = ((number, label) for number, label in found if self._is_ours(number))
        return sorted((number, label) for number, label in ours if label.startswith(label_prefix))

    async def _ensure_namespace(self, namespace: str) -> None:
        """Create the namespace of an account once; the operator's own one exists already."""
        if namespace == self._settings.namespace or namespace in self._namespaces:
            return
        with suppress(ObjectConflict):
            await self._api.create(NAMESPACES, account_namespace(namespace))
        self._namespaces.add(namespace)

    def _is_ours(self, sandbox_id: SandboxId) -> bool:
        try:
            parse_id(sandbox_id, self._settings)
        except SandboxGone:
            return False
        return True

    def _objects(self, ref: SandboxRef, spec: SandboxSpec) -> SandboxObjects:
        validate_spec(spec, self._settings)
        return SandboxObjects(
            ref=ref, spec=spec, settings=self._settings, callback_url=self._callback(spec).url
        )

    def _sandbox(
        self, objects: SandboxObjects, backend: SandboxBackend, identity: PodIdentity
    ) -> KubernetesSandbox:
        record, made = objects.spec.network, Network(identity.network or objects.spec.network)
        objects = replace(objects, spec=replace(objects.spec, network=made))
        egress = self._open_egress(objects, is_opened=record is Network.ALLOW_ALL)
        variables = self._proxy_variables(objects) if egress is not None else {}
        handle = PodHandle(self._api, backend, objects, identity, egress)
        return KubernetesSandbox(handle, objects, self._callback(objects.spec), variables)

    def _proxy_variables(self, objects: SandboxObjects) -> dict[str, str]:
        """Return the variables of the proxy; a pod connects to the networks of its list by itself."""
        found = proxy_environment(self._egress_directory(objects.ref), INSIDE)
        direct = ",".join([found["no_proxy"], *(str(one) for one in allowed_networks(objects.spec))])
        return found | {"no_proxy": direct, "NO_PROXY": direct}

    def _egress_directory(self, ref: SandboxRef) -> Path:
        return self._context.callbacks.directory(f"{ref.namespace}.{ref.name}")

    def _open_egress(self, objects: SandboxObjects, *, is_opened: bool) -> PodEgress | None:
        """Open the gateway's proxy for a restricted sandbox, and return the way to it.

        `is_opened`: the record allows everything now, and so does the proxy.
        """
        if objects.spec.network is not Network.RESTRICTED:
            return None
        directory = self._egress_directory(objects.ref)
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
        networks = tuple(str(network) for network in allowed_networks(objects.spec))
        present = replace(objects.spec, allow_cidrs=networks)
        if is_opened:
            present = replace(present, network=Network.ALLOW_ALL)
        self._context.egress.open(directory, present, proxied=True)
        return self._egress.setdefault(objects.ref, PodEgress(self._api, directory))

    async def _close_egress(self, ref: SandboxRef) -> None:
        found = self._egress.pop(ref, None)
        if found is not None:
            await found.close()
            self._context.egress.close(self._egress_directory(ref))
            shutil.rmtree(self._egress_directory(ref), ignore_errors=True)

    def _callback(self, spec: SandboxSpec) -> CompletionCallback:
        """Return where jobs report their end: without a network only where a policy allows it."""
        settings = self._settings
        url = str(settings.callback_url or self._context.callback_url)
        named = settings.callback_address is not None or bool(settings.callback_pods)
        return CompletionCallback(url=url if named or spec.network is not Network.DENY_ALL else "")


@asynccontextmanager
async def open_provider(settings: KubernetesSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Yield the provider; the cluster may be unavailable for a time."""
    async with open_api(settings) as api:
        provider = KubernetesProvider(api, settings, context)
        try:
            yield provider
        finally:
            await provider.close()
