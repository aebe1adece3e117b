"""The NetworkPolicy of a sandbox: nothing comes in, and what goes out is what the network mode names.

In every mode a pod may reach the gateway's callback if the settings name its address or its pods. The
cluster's network plugin enforces policies; without such a plugin they have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from sandbox.kubernetes.objects import SANDBOX_LABEL, SandboxObjects, allowed_networks, is_within
from sandbox.kubernetes.settings import IpNetwork, KubernetesSettings
from sandbox.model import Network, SandboxSpec

NAMESPACE_NAME = "kubernetes.io/metadata.name"
DNS_PORT = 53
_EVERYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_DEFAULT_PORTS = {"http": 80, "https": 443}


def network_policy(objects: SandboxObjects) -> dict[str, Any]:
    """Return the NetworkPolicy of a sandbox."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": objects.metadata(objects.ref.name),
        "spec": {
            "podSelector": {"matchLabels": {SANDBOX_LABEL: objects.ref.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": list(_egress(objects.spec, objects.settings, objects.callback_url)),
        },
    }


def _egress(spec: SandboxSpec, settings: KubernetesSettings, callback_url: str) -> Iterator[dict[str, Any]]:
    yield from callback_rules(settings, callback_url)
    if spec.network is Network.DENY_ALL:
        return
    networks = _EVERYWHERE if spec.network is Network.ALLOW_ALL else allowed_networks(spec)
    yield from _network_rules(networks, settings)
    if spec.network is Network.ALLOW_ALL:
        yield _dns_rule()


def callback_rules(settings: KubernetesSettings, callback_url: str) -> Iterator[dict[str, Any]]:
    """Yield the rules that let a pod reach the gateway, and nothing else, in every mode."""
    if not callback_url:
        return
    parts = urlsplit(callback_url)
    port = {"protocol": "TCP", "port": parts.port or _DEFAULT_PORTS.get(parts.scheme, 443)}
    if settings.callback_address is not None:
        network = ip_network(str(settings.callback_address))
        yield {"to": [{"ipBlock": {"cidr": str(network)}}], "ports": [port]}
    if settings.callback_pods:
        namespace = {"matchLabels": {NAMESPACE_NAME: settings.callback_namespace or settings.namespace}}
        pods = {"matchLabels": dict(settings.callback_pods)}
        yield {"to": [{"namespaceSelector": namespace, "podSelector": pods}]}


def _network_rules(networks: Iterable[IpNetwork], settings: KubernetesSettings) -> Iterator[dict[str, Any]]:
    """Yield the rule for some networks, without the blocked ones inside them."""
    blocks = []
    for network in networks:
        inside = [str(one) for one in settings.blocked_networks if is_within(one, network)]
        blocks.append({"ipBlock": {"cidr": str(network), **({"except": inside} if inside else {})}})
    if blocks:
        yield {"to": blocks}


def _dns_rule() -> dict[str, Any]:
    ports = [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]
    namespace = {"matchLabels": {NAMESPACE_NAME: "kube-system"}}
    return {"to": [{"namespaceSelector": namespace}], "ports": ports}
