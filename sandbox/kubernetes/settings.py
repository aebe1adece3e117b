"""The operator's settings of the Kubernetes provider: `[sandbox.kubernetes]` of the configuration file."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl

IMAGE = re.compile(r"[a-z0-9][\w.:/@-]{0,254}")
DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

PROFILE_PATH = r"^([A-Za-z0-9_-][A-Za-z0-9._-]*/)*([A-Za-z0-9_-][A-Za-z0-9._-]*)?$"
"""A relative path without `..`, or nothing."""

IpNetwork = IPv4Network | IPv6Network
PRIVATE_NETWORKS: tuple[IpNetwork, ...] = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "fc00::/7", "fe80::/10"),
    )
)
"""Private, link-local and metadata addresses."""


class KubernetesSettings(TypedModel):
    """The cluster, and what the operator determines about its sandboxes."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    kubeconfig: Path | None = None
    """A kubeconfig file; by default the service account of the gateway's pod, else ~/.kube/config."""

    context: str = ""
    """The context of the kubeconfig; by default its current one."""

    api_url: EndpointUrl | None = None
    """The API server, instead of a kubeconfig; needs `token`."""

    token: SecretStr | None = None
    """A bearer token for `api_url`."""

    certificate_authority: Path | None = None
    """The certificates that `api_url` is verified with; by default the system's."""

    namespace: Annotated[str, Field(pattern=DNS_LABEL, max_length=36)] = "dovecote-sandboxes"
    """The namespace of the sandboxes; it must exist."""

    namespace_per_account: bool = False
    """Whether each account has a namespace of its own, `<namespace>-<key>`, which the gateway creates."""

    controller: Literal["auto", "require", "off"] = "auto"
    """Whether the agent-sandbox controller is used: if the cluster has it, always, or never."""

    image: str = "python:3.12-slim"
    """The image of sandboxes: sh, bash, setsid and the usual small programs, preferably python3 and node."""

    images: tuple[str, ...] = ()
    """More images that an account may choose by `options.image`; no other is used."""

    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When a node pulls the image."""

    pull_secrets: tuple[str, ...] = ()
    """Names of secrets in the sandboxes' namespace that the image is pulled with."""

    runtime_class: str = ""
    """A RuntimeClass of the cluster, such as gVisor's or Kata's."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that sandboxes run on."""

    service_account: str = ""
    """The service account of the pods, by default the namespace's; its token is never mounted."""

    user: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1000
    """UID and GID that commands run as; never root."""

    seccomp_profile: Annotated[str, Field(pattern=PROFILE_PATH)] = ""
    """A profile on the nodes, below the kubelet's directory `seccomp`; by default the runtime's own."""

    read_only_root: bool = False
    """Whether only the workspace, HOME and /tmp are writable."""

    cpu_request: Annotated[float, Field(gt=0, le=64)] = 0.1
    """CPUs that the scheduler reserves for a sandbox, at most the sandbox's limit."""

    memory_request_mb: Annotated[int, Field(ge=16)] = 128
    """Megabytes that the scheduler reserves for a sandbox, at most the sandbox's limit."""

    disk_gb: Annotated[float, Field(gt=0, le=4096)] = 4.0
    """The disk of a sandbox on its node in GB: files outside its volume."""

    home_gb: Annotated[float, Field(gt=0, le=4096)] = 2.0
    """The size in GB of the volume of a reserved sandbox whose options name none."""

    storage_class: str = ""
    """The StorageClass of those volumes; by default the cluster's."""

    callback_url: EndpointUrl | None = None
    """The gateway as pods reach it; by default `public_url`."""

    callback_address: IPv4Address | IPv6Address | None = None
    """The IP address of `callback_url`; with it every network mode allows the callback, without DNS."""

    callback_pods: dict[str, str] = Field(default_factory=dict)
    """Labels of the gateway's pods, if it runs in the cluster; every network mode allows them."""

    callback_namespace: str = ""
    """The namespace of the gateway's pods; needed with `callback_pods`."""

    blocked_networks: tuple[IpNetwork, ...] = PRIVATE_NETWORKS
    """Networks that no sandbox reaches in the modes `allow-all` and `restricted`."""

    start_timeout: Annotated[float, Field(ge=5, le=1800)] = 180.0
    """Seconds that starting a sandbox may take, with pulling its image."""

    api_timeout: Annotated[float, Field(gt=0, le=600)] = 30.0
    """Seconds to wait for an answer of the API server."""

    abandoned_seconds: Annotated[int, Field(ge=3600)] = 86_400
    """Seconds after which the cluster itself ends a sandbox that the gateway no longer uses."""

    @field_validator("image", "images")
    @classmethod
    def _are_images(cls, named: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for image in (named,) if isinstance(named, str) else named:
            if not IMAGE.fullmatch(image):
                raise ValueError(f"{image!r} is not an image name, as in python:3.12-slim")
        return named
