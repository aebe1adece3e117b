"""The Helm chart, rendered and linted by Helm itself; what it makes is what the gateway accepts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gateway.config.load import load
from gateway.config.settings import Settings
from helm import CHART, RenderedChart, render_chart

DEPLOY = CHART.parents[1]
SECRET = {
    "DOVECOTE_DATABASE_URL": "postgresql://dovecote:password@postgresql:5432/dovecote",
    "DOVECOTE_NATS_URL": "nats://token@nats:4222",
    "DOVECOTE_SECRET_KEYS": "0123456789abcdef0123456789abcdef",
}
SHARED = {"secret": SECRET, "persistence": {"mode": "shared"}}
CASES: dict[str, dict[str, Any]] = {
    "shared": SHARED,
    "bucket": {"secret": SECRET, "workspaces": {"store": "s3", "bucket": "files"}},
    "one": {"gateways": {"main": {"roles": "all", "replicas": 1}}},
    "groups": {
        **SHARED,
        "gateways": {
            "main": None,
            "door": {"roles": ["ingress"], "replicas": 2},
            "workers": {"roles": ["turns", "delivery", "reaper"], "replicas": 3},
        },
        "ingress": {"enabled": True, "host": "bot.example.com"},
        "networkPolicy": {"from": [{"podSelector": {}}], "egress": [{"to": [{"podSelector": {}}]}]},
    },
    "accounts": {**SHARED, "kubernetesProvider": {"namespacePerAccount": True}},
    "elsewhere": {**SHARED, "kubernetesProvider": {"enabled": False}, "existingSecret": "theirs"},
    "digest": {**SHARED, "image": {"repository": "here/dovecote", "digest": f"sha256:{'a' * 64}"}},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no database": ({"persistence": {"mode": "shared"}}, "secret.DOVECOTE_DATABASE_URL is missing"),
    "no bucket": ({"secret": SECRET}, "workspaces.store: directory works for one gateway only"),
    "no name": ({"secret": SECRET, "workspaces": {"store": "s3"}}, "workspaces.bucket is missing"),
    "no reaper": (
        {**SHARED, "gateways": {"main": {"roles": ["ingress", "turns", "delivery"], "replicas": 2}}},
        "no group has the role reaper",
    ),
    "no host": ({**SHARED, "ingress": {"enabled": True}}, "ingress.host is missing"),
    "unknown key": ({**SHARED, "replicaCount": 3}, "replicaCount"),
    "unknown role": ({**SHARED, "gateways": {"main": {"roles": ["web"], "replicas": 2}}}, "roles"),
    "short digest": ({**SHARED, "image": {"digest": "sha256:12"}}, "digest"),
}


@cache
def charts() -> dict[str, RenderedChart]:
    """Return every case, rendered in one process of Helm."""
    cases = {**CASES, **{name: values for name, (values, _) in REFUSED.items()}}
    return dict(zip(cases, render_chart(*cases.values()), strict=True))


def pods(chart: RenderedChart) -> dict[str, dict[str, Any]]:
    """Return the pod of each StatefulSet by the set's name."""
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in chart.kind("StatefulSet")}


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_in_the_chart(case: str) -> None:
    """`helm lint --strict` has nothing to report but the picture that the chart does not have."""
    chart = charts()[case]
    assert chart.error == ""
    assert [one["error"] for one in chart.findings] == ["icon is recommended"]


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_cannot_work_are_refused(case: str) -> None:
    """The error names the value, before anything is installed."""
    assert REFUSED[case][1] in charts()[case].error


@pytest.mark.parametrize("case", CASES)
def test_the_gateway_accepts_what_the_chart_sets(case: str, tmp_path: Path) -> None:
    """Variables, Secret and settings file of each pod are valid settings of the gateway."""
    for name, pod in pods(charts()[case]).items():
        settings = settings_of(case, pod, tmp_path)
        groups = CASES[case].get("gateways", {"main": {"roles": "all", "replicas": 2}})
        group = groups[name.removeprefix("demo-dovecote-")]
        assert settings.replicas == sum(one["replicas"] for one in groups.values() if one)
        expected = group["roles"]
        roles = {role.value for role in settings.roles}
        assert roles == ({"ingress", "turns", "delivery", "reaper"} if expected == "all" else set(expected))


def settings_of(case: str, pod: dict[str, Any], directory: Path) -> Settings:
    """Return what `serve` would read in this pod."""
    (container,) = pod["containers"]
    chart = charts()[case]
    made = chart.kind("Secret")
    variables: dict[str, str] = dict(made[0]["stringData"] or {}) if made else dict(SECRET)
    variables |= {one["name"]: one["value"] for one in container["env"]}
    config = directory / "dovecote.toml"
    config.write_text(chart.kind("ConfigMap")[0]["data"]["dovecote.toml"])
    assert variables.pop("DOVECOTE_CONFIG") == "/etc/dovecote/dovecote.toml"
    assert all(isinstance(value, str) for value in variables.values())
    return load(env=variables, config=config, directory=directory)


@pytest.mark.parametrize("case", CASES)
def test_a_gateway_has_no_rights_on_its_node(case: str) -> None:
    """It runs as a user other than root, on a read-only root, without capabilities and foreign variables."""
    for pod in pods(charts()[case]).values():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == {
            "/data",
            "/tmp",
        }
        # A Service named dovecote would set DOVECOTE_PORT to tcp://..., which is a setting of the gateway.
        assert pod["enableServiceLinks"] is False
        enabled = CASES[case].get("kubernetesProvider", {}).get("enabled", True)
        assert pod["automountServiceAccountToken"] is enabled
        assert {name for name in container if name.endswith("Probe")} == {
            "startupProbe",
            "livenessProbe",
            "readinessProbe",
        }


def test_its_rights_in_the_cluster_are_those_of_the_manifests() -> None:
    """The chart's role, namespace and quota equal deploy/kubernetes."""
    role, _binding = (
        one
        for one in yaml.safe_load_all((DEPLOY / "kubernetes" / "role.yaml").read_text())
        if one["kind"].startswith("Role")
    )
    wide = yaml.safe_load_all((DEPLOY / "kubernetes" / "role-per-account.yaml").read_text())
    cluster = next(one for one in wide if one["kind"] == "ClusterRole")
    assert charts()["shared"].kind("Role")[0]["rules"] == role["rules"]
    assert charts()["accounts"].kind("ClusterRole")[0]["rules"] == cluster["rules"]
    assert not charts()["elsewhere"].kind("Role")
    namespace, _policy, quota = yaml.safe_load_all((DEPLOY / "kubernetes" / "namespace.yaml").read_text())
    made = charts()["shared"]
    assert made.kind("ResourceQuota")[0]["spec"] == quota["spec"]
    labels = made.kind("Namespace")[0]["metadata"]["labels"]
    assert labels.items() >= namespace["metadata"]["labels"].items()


def test_groups_share_one_service_and_have_budgets_of_their_own() -> None:
    """The Service selects the gateways with the role ingress; each group loses one gateway at a time."""
    chart = charts()["groups"]
    front, names = chart.kind("Service")
    selector = front["spec"]["selector"]
    sets = {one["metadata"]["name"]: one["spec"] for one in chart.kind("StatefulSet")}
    labels = {name: one["template"]["metadata"]["labels"] for name, one in sets.items()}
    assert [name for name, one in labels.items() if selector.items() <= one.items()] == ["demo-dovecote-door"]
    assert {one["serviceName"] for one in sets.values()} == {names["metadata"]["name"]}
    budgets = {
        one["metadata"]["name"]: one["spec"]["maxUnavailable"] for one in chart.kind("PodDisruptionBudget")
    }
    assert budgets == {"demo-dovecote-door": 1, "demo-dovecote-workers": 1}
    assert not charts()["one"].kind("PodDisruptionBudget")
    policy = next(one for one in chart.kind("NetworkPolicy") if one["metadata"]["name"] == "demo-dovecote")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert len(policy["spec"]["ingress"][0]["from"]) == 2


def test_a_digest_wins_over_the_tag() -> None:
    """An image can be named by its digest alone."""
    (pod,) = pods(charts()["digest"]).values()
    assert pod["containers"][0]["image"] == f"here/dovecote@sha256:{'a' * 64}"
