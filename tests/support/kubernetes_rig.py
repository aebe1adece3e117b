"""Open the Kubernetes provider in a test: on a small API server on loopback, or on a real cluster.

`DOVECOTE_TEST_KUBECONFIG` names the kubeconfig of a cluster, which then replaces the loopback one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kubernetes_service import TOKEN
from sandbox.kubernetes.settings import KubernetesSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url

KUBECONFIG = os.environ.get("DOVECOTE_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("DOVECOTE_TEST_KUBERNETES_IMAGE", "python:3.12-slim")


def _rig(name: str, directory: Path, **settings: Any) -> ProviderRig:
    return ProviderRig(
        name=name,
        plugin=built_in()["kubernetes"],
        settings=KubernetesSettings.model_validate(settings),
        directory=directory,
    )


def _loopback(module: str) -> RigFactory:
    return lambda directory: _rig(module, directory, api_url=service_url(module), token=TOKEN)


def _cluster(controller: str) -> RigFactory:
    chosen = {"kubeconfig": KUBECONFIG, "image": IMAGE, "controller": controller}
    return lambda directory: _rig(f"cluster_{controller}", directory, **chosen)


LOOPBACK = {"pods": _loopback("kubernetes_pods_service")}
"""The sandboxes of the controller are the same pods, so a gate runs one of the two."""
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    LOOPBACK["sandboxes"] = _loopback("kubernetes_service")

VARIANTS: dict[str, RigFactory] = (
    {"cluster_pods": _cluster("off"), "cluster_sandboxes": _cluster("require")} if KUBECONFIG else LOOPBACK
)
