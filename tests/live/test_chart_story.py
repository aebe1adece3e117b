"""The Helm chart in a real cluster: needs DOVECOTE_LIVE_CHART, which .ci/chart sets, and skips without it.

`DOVECOTE_LIVE_CHART` is an administrator's kubeconfig. `CHART_API_SERVER` is ADDRESS:PORT of the API server
as pods reach it, for a cluster whose Services have no addresses. By default the images are the public ones.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from deployed_gateway import DeployedGateway, results, run, until
from helm import install_chart

KUBECONFIG = os.environ.get("DOVECOTE_LIVE_CHART", "")
API_SERVER = os.environ.get("CHART_API_SERVER", "")
API_NAME = "kubernetes.default.svc"
IMAGES = {
    "gateway": os.environ.get("GATEWAY_IMAGE", "dovecote:0.1.0"),
    "sandbox": os.environ.get("SANDBOX_IMAGE", "python:3.12-slim"),
    "nats": os.environ.get("NATS_IMAGE", "nats:2.15-alpine"),
    "postgres": os.environ.get("POSTGRES_IMAGE", "postgres:17-alpine"),
}
SECONDS = 240
JOB = "!&for i in 1 2 3 4 5 6; do sleep 5; echo step $i; done; echo pigeon"

pytestmark = [pytest.mark.live, pytest.mark.skipif(not KUBECONFIG, reason="needs DOVECOTE_LIVE_CHART")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A release in a namespace of its own, beside NATS and PostgreSQL."""

    namespace: str

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return run("kubectl", "--kubeconfig", KUBECONFIG, "--namespace", self.namespace, *words, stdin=stdin)

    def gateway(self, number: int) -> DeployedGateway:
        """Return one of the replicas."""
        words = ("kubectl", "--kubeconfig", KUBECONFIG, "--namespace", self.namespace)
        return DeployedGateway(enter=[*words, "exec", f"dovecote-main-{number}", "--"], data="/data/dovecote")

    def uid(self, number: int) -> str:
        """Return what distinguishes a replica's pod, and its container, from a successor."""
        path = "{.metadata.uid} {.status.containerStatuses[0].restartCount}"
        return self.kubectl("get", "pod", f"dovecote-main-{number}", "--output", f"jsonpath={path}")

    def is_replaced(self, number: int, before: str) -> bool:
        """Whether a replica has another pod or container than before."""
        return self.uid(number) != before

    def server(self, name: str, port: int, env: dict[str, str], *args: str) -> str:
        """Run a server as a pod and return its address."""
        container = {
            "name": name,
            "image": IMAGES[name],
            "args": list(args),
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        }
        spec = {"containers": [container], "enableServiceLinks": False, "terminationGracePeriodSeconds": 0}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(pod))
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={SECONDS}s")
        return self.kubectl("get", "pod", name, "--output", "jsonpath={.status.podIP}")

    def values(self) -> dict[str, Any]:
        """Start the servers and return the values of the chart: names are bound to addresses without DNS."""
        password, token = secrets.token_hex(16), secrets.token_hex(16)
        owner = {
            "POSTGRES_USER": "dovecote",
            "POSTGRES_PASSWORD": password,
            "POSTGRES_DB": "dovecote",
        }
        aliases = [
            {"ip": self.server("postgres", 5432, owner), "hostnames": ["postgres"]},
            {
                "ip": self.server("nats", 4222, {}, "-js", "-sd", "/data", "--auth", token),
                "hostnames": ["nats"],
            },
        ]
        environment = []
        if API_SERVER:
            address, _, port = API_SERVER.partition(":")
            aliases.append({"ip": address, "hostnames": [API_NAME]})
            found = {"KUBERNETES_SERVICE_HOST": API_NAME, "KUBERNETES_SERVICE_PORT": port}
            environment = [{"name": name, "value": value} for name, value in found.items()]
        repository, _, tag = IMAGES["gateway"].rpartition(":")
        return {
            "image": {"repository": repository, "tag": tag},
            "secret": {
                "DOVECOTE_DATABASE_URL": f"postgresql://dovecote:{password}@postgres:5432/dovecote",
                "DOVECOTE_NATS_URL": f"nats://{token}@nats:4222",
                "DOVECOTE_SECRET_KEYS": secrets.token_hex(32),
            },
            "persistence": {"mode": "shared", "size": "1Gi"},
            "kubernetesProvider": {
                "image": IMAGES["sandbox"],
                "namespace": f"{self.namespace}-sandboxes",
            },
            "hostAliases": aliases,
            "extraEnv": environment,
        }


@pytest.fixture
def installation() -> Iterator[Installation]:
    """Install the chart with two gateways, wait for both, and remove everything afterwards."""
    installed = Installation(namespace=f"dovecote-chart-{secrets.token_hex(4)}")
    namespace = installed.namespace
    installed.kubectl("create", "namespace", namespace)
    try:
        install_chart(KUBECONFIG, "dovecote", namespace, installed.values())
        installed.kubectl("rollout", "status", "statefulset/dovecote-main", f"--timeout={SECONDS}s")
        yield installed
        install_chart(KUBECONFIG, "dovecote", namespace, None)
    finally:
        installed.kubectl(
            "delete", "namespace", namespace, f"{namespace}-sandboxes", "--ignore-not-found", "--wait=false"
        )


def kill(installed: Installation, number: int) -> None:
    """Kill every process of a replica but the first, which ends with them."""
    run("sh", "-c", '"$@" || true', "sh", *installed.gateway(number).enter, "sh", "-c", "kill -9 -1")


def delete(installed: Installation, number: int) -> None:
    """Delete a replica's pod at once, as after the loss of its node."""
    installed.kubectl("delete", "pod", f"dovecote-main-{number}", "--grace-period=0", "--force")


def test_a_job_ends_once_though_its_gateway_is_lost(installation: Installation) -> None:
    """Twice the replica that accepted a job's message is lost; the other reports the result once, in full."""
    ways: tuple[Callable[[Installation, int], None], ...] = (kill, delete)
    for number, lose in enumerate(ways):
        conversation, other = f"demo-{lose.__name__}", installation.gateway(1 - number)
        assert "Started job job_" in installation.gateway(number).chat(JOB, conversation)
        before = installation.uid(number)
        lose(installation, number)
        until(partial(other.has_ended, conversation), SECONDS)
        until(partial(installation.is_replaced, number, before), SECONDS)
        installation.kubectl("rollout", "status", "statefulset/dovecote-main", f"--timeout={SECONDS}s")
        until(installation.gateway(number).is_ready, SECONDS)
        assert "hello again" in installation.gateway(number).chat("!echo hello again", conversation)
        shown = other.snapshot(conversation)
        assert [(job["state"], job["exit_code"]) for job in shown["jobs"]] == [("completed", 0)]
        (result,) = results(shown)
        assert [result.count(f"step {step}") for step in range(1, 7)] == [1] * 6, result
        assert result.count("\npigeon\n") == 1, result
        assert installation.gateway(number).snapshot(conversation)["messages"] == shown["messages"]
