"""The Kubernetes provider's own rules: which objects it makes, how errors map, what survives what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kubernetes_objects import Object
from kubernetes_service import TOKEN, TOKEN_WITHOUT_ROLE, KubernetesService, kubernetes_service
from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxGone,
)
from sandbox.kubernetes import plugin
from sandbox.kubernetes.settings import KubernetesSettings
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network, SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext, Sandbox
from sandbox.testing.waiting import until

NAMESPACE = "dovecote-sandboxes"
CALLBACK = {"callback_url": "http://gateway.example:8080", "callback_address": "10.1.2.3"}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[KubernetesService]:
    """Run a cluster with the agent-sandbox controller."""
    async with kubernetes_service(tmp_path / "cluster") as running:
        yield running


def _open(
    service: KubernetesService, directory: Path, **changes: Any
) -> AbstractAsyncContextManager[Provider]:
    context = ProviderContext(
        state=directory / "state",
        callbacks=CallbackDirectories(root=directory / "callbacks"),
        callback_url="https://bots.example",
    )
    settings = {"api_url": service.url, "token": TOKEN, **changes}
    return plugin.open(plugin.settings.model_validate(settings), context)


@pytest.fixture
async def provider(service: KubernetesService, tmp_path: Path) -> AsyncIterator[Provider]:
    """Open the provider."""
    async with _open(service, tmp_path) as provider:
        yield provider


def _spec(**changes: Any) -> SandboxSpec:
    fields: dict[str, Any] = {"label": "dovecote-1", "namespace": "space", "persistent": True}
    return SandboxSpec(**fields | changes)


def _object(service: KubernetesService, kind: str, sandbox: Sandbox) -> Object:
    """Return an object of a sandbox."""
    namespace, name, _ = sandbox.id.split(".")
    return service.store.objects[
        kind, namespace, f"home-{name}" if kind == "persistentvolumeclaims" else name
    ]


def _kinds(service: KubernetesService) -> list[str]:
    """Return the kinds of which an object exists."""
    return sorted(kind for kind, *_ in service.store.objects if kind != "namespaces")


async def _run(sandbox: Sandbox, script: str) -> bytes:
    return (await sandbox.run(ExecRequest(script=script))).stdout


async def test_a_suspended_sandbox_keeps_its_volume(provider: Provider, service: KubernetesService) -> None:
    """The Sandbox is Suspended and has no pod; the next call resumes it with HOME and workspace."""
    sandbox = await provider.create(_spec())
    await sandbox.run(ExecRequest(script="echo home > ~/file; echo work > file"))
    await sandbox.suspend()
    assert _object(service, "sandboxes", sandbox)["spec"]["operatingMode"] == "Suspended"
    assert "pods" not in _kinds(service)
    assert await _run(sandbox, "cat ~/file file") == b"home\nwork\n"
    assert _object(service, "sandboxes", sandbox)["spec"]["operatingMode"] == "Running"


async def test_plain_pods_do_the_same_without_the_controller(tmp_path: Path) -> None:
    """A suspended sandbox is a claim without a pod: listed, resumed by its id, and gone when destroyed."""
    async with kubernetes_service(tmp_path / "cluster", controller=False) as service:
        async with _open(service, tmp_path) as provider:
            sandbox = await provider.create(_spec())
            await sandbox.run(ExecRequest(script="echo home > ~/file"))
            await sandbox.suspend()
            assert _kinds(service) == ["networkpolicies", "persistentvolumeclaims"]
            assert await provider.list() == [(sandbox.id, "dovecote-1")]
            again = await provider.connect(sandbox.id, _spec())
            assert await _run(again, "cat ~/file") == b"home\n"
            assert _object(service, "pods", sandbox)["spec"]["activeDeadlineSeconds"] > _spec().max_lifetime
            await provider.destroy(sandbox.id)
            assert _kinds(service) == []
        async with _open(service, tmp_path, controller="require") as provider:
            with pytest.raises(ProviderRefused, match=r"agents\.x-k8s\.io/v1beta1"):
                await provider.create(_spec())


async def test_a_sandbox_with_a_running_job_is_not_suspended(provider: Provider) -> None:
    """The job would end with the pod; a sandbox without a volume is not suspended either."""
    sandbox = await provider.create(_spec())
    await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 30", token="t"))
    with pytest.raises(ProviderRefused, match="running job"):
        await sandbox.suspend()
    await sandbox.stop("job_1")
    await sandbox.suspend()
    assert (await sandbox.report("job_1")).state is BackgroundJobState.EXITED
    passing = await provider.create(_spec(label="passing", persistent=False))
    with pytest.raises(ProviderRefused, match="persistent"):
        await passing.suspend()


async def test_an_evicted_pod_is_replaced(provider: Provider, service: KubernetesService) -> None:
    """A reserved sandbox gets a new pod with its volume, and its job has ended; an unreserved one is gone."""
    sandbox = await provider.create(_spec())
    await sandbox.run(ExecRequest(script="echo kept > ~/file"))
    await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 30", token="t"))
    service.node.fail(_object(service, "pods", sandbox))
    assert await _run(sandbox, "cat ~/file") == b"kept\n"
    assert (await sandbox.report("job_1")).state is BackgroundJobState.RECREATED
    passing = await provider.create(_spec(label="passing", persistent=False))
    service.node.fail(_object(service, "pods", passing))
    with pytest.raises(SandboxGone):
        await passing.run(ExecRequest(script="true"))


@pytest.mark.parametrize("controller", [True, False], ids=["controller", "pods"])
@pytest.mark.parametrize("persistent", [True, False], ids=["volume", "no-volume"])
@pytest.mark.parametrize("status", [404, 410, 200])
async def test_a_page_of_a_proxy_does_not_end_the_jobs(
    tmp_path: Path, status: int, *, persistent: bool, controller: bool
) -> None:
    """Only a Status of the API server says that a sandbox is gone; anything else is tried again."""
    async with (
        kubernetes_service(tmp_path / "cluster", controller=controller) as service,
        _open(service, tmp_path) as provider,
    ):
        sandbox = await provider.create(_spec(persistent=persistent))
        await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 60", token="t"))
        service.page = (status, "<h1>Not here</h1>")
        for call in (sandbox.report("job_1"), provider.destroy(sandbox.id)):
            with pytest.raises(ProviderUnreachable, match="api_url"):
                await call
        service.page = None
        assert (await sandbox.report("job_1")).state is BackgroundJobState.RUNNING


async def test_a_command_whose_pod_is_evicted_is_interrupted(
    provider: Provider, service: KubernetesService
) -> None:
    """Its connection ends without a status; the error has the cluster's reason and what to do."""
    sandbox = await provider.create(_spec())
    running = asyncio.create_task(sandbox.run(ExecRequest(script="touch begun; sleep 60")))

    async def begun() -> bool:
        return (await sandbox.run(ExecRequest(script="test -e begun"))).ok

    await until(begun)
    await service.node.evict(_object(service, "pods", sandbox))
    with pytest.raises(CommandInterrupted, match=r"OOMKilled: .* before you repeat it"):
        await running


async def test_other_files_are_another_sandbox(provider: Provider, service: KubernetesService) -> None:
    """What is made again with one label has a new id: nothing of it is taken for the old one's files."""
    for persistent in (True, False):
        spec = _spec(label=f"label-{persistent}", persistent=persistent)
        old = await provider.create(spec)
        await provider.destroy(old.id)
        new = await provider.create(spec)
        assert old.id != new.id
        with pytest.raises(SandboxGone):
            await old.run(ExecRequest(script="echo wrong"))
        with pytest.raises(SandboxGone):
            await provider.connect(old.id, spec)
        await provider.destroy(old.id)
        assert await _run(new, "echo right") == b"right\n"
    namespace, name, _ = new.id.split(".")
    await service.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")
    with pytest.raises(SandboxGone):
        await new.run(ExecRequest(script="echo in the pod that the controller makes then"))


async def test_the_cluster_ends_unused_sandboxes(provider: Provider, service: KubernetesService) -> None:
    """Each use puts off shutdownTime; at that time pod and claim go, and the gateway removes the policy."""
    sandbox = await provider.create(_spec())
    place = f"/apis/agents.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/sandboxes/{sandbox.id.split('.')[1]}"
    spec = _object(service, "sandboxes", sandbox)["spec"]
    assert spec["shutdownPolicy"] == "Delete"
    early = {"spec": {"shutdownTime": "2999-01-01T00:00:00Z"}}
    merge = {"content_type": "application/merge-patch+json"}
    await service.request("PATCH", place, body=early, **merge)
    await provider.connect(sandbox.id, _spec())
    assert _object(service, "sandboxes", sandbox)["spec"]["shutdownTime"] < "2999"
    await service.request("PATCH", place, body={"spec": {"shutdownTime": "2000-01-01T00:00:00Z"}}, **merge)
    async with asyncio.timeout(60):
        while _kinds(service) != ["networkpolicies"]:  # noqa: ASYNC110 - the cluster is at work
            await asyncio.sleep(0.01)
    with pytest.raises(SandboxGone):
        await provider.connect(sandbox.id, _spec())
    ((orphan, label),) = await provider.list("dovecote-")
    assert label == "dovecote-1"
    await provider.destroy(orphan)
    assert _kinds(service) == []


async def test_many_who_create_at_once_get_one_sandbox(
    provider: Provider, service: KubernetesService
) -> None:
    """The name prevents a second one, whichever process creates it."""
    made = await asyncio.gather(*(provider.create(_spec()) for _ in range(4)))
    assert len({sandbox.id for sandbox in made}) == 1
    assert _kinds(service) == ["networkpolicies", "persistentvolumeclaims", "pods", "sandboxes"]


async def test_a_changed_configuration_replaces_the_pod(
    provider: Provider, service: KubernetesService, tmp_path: Path
) -> None:
    """The volume stays; another process that changes the Sandbox at the same time is not overwritten."""
    sandbox = await provider.create(_spec())
    await sandbox.run(ExecRequest(script="echo kept > ~/file"))
    async with _open(service, tmp_path, image="debian:13") as changed:
        with pytest.raises(SandboxGone, match="configuration"):
            await changed.connect(sandbox.id, _spec())
        service.lost_updates = 1
        again = await changed.create(_spec())
        assert again.id == sandbox.id
        assert await _run(again, "cat ~/file") == b"kept\n"
    assert service.lost_updates == 0
    assert _object(service, "pods", sandbox)["spec"]["containers"][0]["image"] == "debian:13"


async def test_a_pod_has_no_rights_and_the_operators_settings(
    service: KubernetesService, tmp_path: Path
) -> None:
    """No token, no root, no capabilities; limits, runtime, nodes and secrets as configured."""
    chosen = {
        "runtime_class": "gvisor",
        "node_selector": {"pool": "sandboxes"},
        "pull_secrets": ["registry"],
        "storage_class": "fast",
        **CALLBACK,
    }
    async with _open(service, tmp_path, **chosen) as provider:
        sandbox = await provider.create(_spec(memory_mb=256, cpus=0.5, options={"persistent_disk_gb": 3.0}))
    pod = _object(service, "pods", sandbox)["spec"]
    container = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 1000)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"]["limits"] == {
        "cpu": "500m",
        "memory": "256Mi",
        "ephemeral-storage": "4096Mi",
    }
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert (pod["runtimeClassName"], pod["nodeSelector"]) == ("gvisor", {"pool": "sandboxes"})
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": ["gateway.example"]}]
    claim = _object(service, "persistentvolumeclaims", sandbox)["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "3072Mi")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", {"type": "RuntimeDefault"}),
        ("profiles/dovecote.json", {"type": "Localhost", "localhostProfile": "profiles/dovecote.json"}),
    ],
)
async def test_pods_have_the_operators_seccomp_profile(
    service: KubernetesService, tmp_path: Path, path: str, expected: dict[str, str]
) -> None:
    """A pod names the operator's profile on the nodes, or that of the runtime, and it runs."""
    async with _open(service, tmp_path, seccomp_profile=path) as provider:
        sandbox = await provider.create(_spec())
        assert (await sandbox.run(ExecRequest(script="true"))).ok
        security = _object(service, "pods", sandbox)["spec"]["securityContext"]
        assert security["seccompProfile"] == expected


@pytest.mark.parametrize("path", ["/etc/profile.json", "../profile.json", "a/../b.json", "a//b", "a b"])
def test_a_seccomp_profile_is_below_the_kubelets_directory(path: str) -> None:
    """A path that leads elsewhere is refused when the settings are read."""
    with pytest.raises(ValidationError, match="seccomp_profile"):
        KubernetesSettings.model_validate({"seccomp_profile": path})


async def test_each_network_mode_has_its_policy(service: KubernetesService, tmp_path: Path) -> None:
    """Nothing comes in; out goes the callback in every mode, and besides it what the mode names."""
    async with _open(service, tmp_path, **CALLBACK) as provider:
        closed = await provider.create(_spec())
        egress = _object(service, "networkpolicies", closed)["spec"]["egress"]
        callback = {
            "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}],
            "ports": [{"protocol": "TCP", "port": 8080}],
        }
        assert egress == [callback]
        listed = _spec(network=Network.RESTRICTED, allow_cidrs=("93.184.0.0/16",))
        await provider.create(listed)
        policy = _object(service, "networkpolicies", closed)["spec"]
        assert policy["egress"] == [callback, {"to": [{"ipBlock": {"cidr": "93.184.0.0/16"}}]}]
        assert (policy["ingress"], policy["policyTypes"]) == ([], ["Ingress", "Egress"])
        assert (
            policy["podSelector"]["matchLabels"].items()
            <= _object(service, "pods", closed)["metadata"]["labels"].items()
        )
        await provider.create(_spec(network=Network.ALLOW_ALL))
        _, everywhere, names = _object(service, "networkpolicies", closed)["spec"]["egress"]
        assert "169.254.0.0/16" in everywhere["to"][0]["ipBlock"]["except"]
        assert {port["port"] for port in names["ports"]} == {53}
        with pytest.raises(ProviderRefused, match="blocked_networks"):
            await provider.create(_spec(network=Network.RESTRICTED, allow_cidrs=("10.0.0.0/24",)))


async def test_a_namespace_for_each_account(service: KubernetesService, tmp_path: Path) -> None:
    """Sandboxes of two accounts are in two namespaces, which take no privileged pods; both are listed."""
    async with _open(service, tmp_path, namespace_per_account=True) as provider:
        first = await provider.create(_spec(account="acct_1", persistent=False))
        second = await provider.create(_spec(account="acct_2", label="dovecote-2", persistent=False))
        spaces = {sandbox.id.partition(".")[0] for sandbox in (first, second)}
        assert len(spaces) == 2
        for space in spaces:
            labels = service.store.objects["namespaces", "", space]["metadata"]["labels"]
            assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        assert {found for found, _ in await provider.list("dovecote-")} == {first.id, second.id}
        await provider.connect(first.id, _spec(account="acct_1", persistent=False))


async def test_errors_are_folded(service: KubernetesService, tmp_path: Path) -> None:
    """Credentials and roles are the operator's, a server that is down or asks for patience is tried again."""
    for token in ("wrong-token", TOKEN_WITHOUT_ROLE):
        async with _open(service, tmp_path, token=token) as provider:
            with pytest.raises(ProviderUnauthorized) as caught:
                await provider.create(_spec())
            assert token not in str(caught.value)
    async with _open(service, tmp_path, api_url="http://127.0.0.1:9") as provider:
        with pytest.raises(ProviderUnreachable):
            await provider.create(_spec())
    async with _open(service, tmp_path, namespace="absent") as provider:
        with pytest.raises(ProviderRefused, match="create the namespace 'absent'"):
            await provider.create(_spec())
    async with _open(service, tmp_path, image="missing") as provider:
        with pytest.raises(ProviderRefused, match="ImagePullBackOff"):
            await provider.create(_spec(label="no-image"))
        with pytest.raises(ProviderRefused, match="not one the operator allows"):
            await provider.create(_spec(options={"image": "other"}))
    async with _open(service, tmp_path) as provider:
        service.overloaded = 3
        await provider.create(_spec(persistent=False))
        assert service.overloaded == 0
    with pytest.raises(ProviderRefused, match="not configured"):
        await _open(service, tmp_path, kubeconfig=tmp_path / "absent", api_url=None).__aenter__()


@pytest.mark.parametrize("controller", ["auto", "off"])
async def test_a_pod_on_a_lost_node_is_named_with_the_remedy(
    service: KubernetesService, tmp_path: Path, controller: str
) -> None:
    """A pod that its node does not end blocks its successor until it is deleted by force."""
    async with _open(service, tmp_path, controller=controller, start_timeout=5) as provider:
        sandbox = await provider.create(_spec())
        service.node.is_lost = True
        with pytest.raises(ProviderUnreachable, match="--grace-period=0 --force"):
            await sandbox.suspend()


async def test_nothing_of_a_command_is_in_a_url(provider: Provider, service: KubernetesService) -> None:
    """API servers log URLs: script, variables and input of a run are sent as stdin."""
    sandbox = await provider.create(_spec(env={"KEY": "canary-1"}))
    result = await sandbox.run(ExecRequest(script="echo canary-2; cat; echo $KEY", stdin=b"canary-3\n"))
    assert result.stdout == b"canary-2\ncanary-3\ncanary-1\n"
    assert service.commands
    assert "canary" not in str(service.commands)
