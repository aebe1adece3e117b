"""The operator's settings of the docker provider."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, IPvAnyNetwork, field_validator

from egress.typed_model import TypedModel

IMAGE = re.compile(r"[a-z0-9][\w.:/@-]{0,254}")
_HOST = re.compile(r"(unix:///.+|(tcp|http|https)://[^/]+/?)")
_USER = re.compile(r"\d+(:\d+)?")
_MOUNT = re.compile(r"(?P<source>/[^:\0]*):(?P<target>/[^:\0]+?)(?P<mode>:r[ow])?")

Port = Annotated[int, Field(ge=1, le=65535)]


class DockerSettings(TypedModel):
    """`[sandbox.docker]` of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "unix:///var/run/docker.sock"
    """The engine: a unix socket (Docker's, Podman's), or tcp://host:port; also set by `DOCKER_HOST`."""

    certificates: Path | None = None
    """A directory with ca.pem, cert.pem and key.pem for an engine behind TLS."""

    image: str = "python:3.12-slim"
    """The image of sandboxes: bash, python3, the usual small programs, and preferably node and uv."""

    images: tuple[str, ...] = ()
    """More images that an account may choose by `options.image`; no other is used."""

    pull: bool = True
    """Whether an image that the engine lacks is pulled."""

    runtime: str = ""
    """Another runtime of the engine, such as gVisor's `runsc`."""

    seccomp: Literal["strict", "engine"] = "strict"
    """The filter of system calls: the gateway's own, which denies what it does not list, or the engine's."""

    user: str = ""
    """UID or UID:GID that commands run as; by default the gateway's own, so that both may use the files."""

    network: str = "bridge"
    """The engine's network for `network.mode` allow-all; deny-all has none."""

    network_filter: bool = True
    """Whether packets of allow-all sandboxes to the machine and to private addresses are rejected."""

    reachable: tuple[IPvAnyNetwork, ...] = ()
    """Private networks that allow-all sandboxes may reach nevertheless, such as `10.1.2.0/24`."""

    ports: tuple[Port, ...] = ()
    """Ports of allow-all sandboxes that are published at creation, so that `expose` can return them."""

    publish_address: str = "127.0.0.1"
    """The host's address at which those ports are published."""

    public_host: str = ""
    """The host name in the URLs that `expose` returns; by default `publish_address`."""

    mounts: tuple[str, ...] = ()
    """More directories for every sandbox, `/on/the/host:/inside[:rw]`: read-only without rw."""

    suspend: Literal["stop", "pause"] = "stop"
    """How an idle sandbox is suspended: stopped (frees memory, empties /tmp) or paused (keeps everything)."""

    read_only_root: bool = False
    """Whether only the workspace, HOME and /tmp are writable."""

    max_file_bytes: Annotated[int, Field(ge=1024 * 1024)] = 2 * 1024**3
    """The largest single file in bytes that a command may write, sparse files included."""

    workspace_bytes: Annotated[int, Field(ge=1024 * 1024)] | None = None
    """The most bytes of a workspace whose sandbox record has no `diskGb`; unlimited by default."""

    api_timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds to wait for the engine's answer."""

    pull_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that pulling an image may take."""

    callback_patience: Annotated[int, Field(gt=0)] = 600
    """Seconds for which a finished job retries its completion callback."""

    @field_validator("host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if not _HOST.fullmatch(host):
            raise ValueError("as in unix:///var/run/docker.sock or tcp://127.0.0.1:2376")
        return host

    @field_validator("image", "images")
    @classmethod
    def _are_images(cls, named: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for image in (named,) if isinstance(named, str) else named:
            if not IMAGE.fullmatch(image):
                raise ValueError(f"{image!r} is not an image name, as in python:3.12-slim")
        return named

    @field_validator("user")
    @classmethod
    def _is_user(cls, user: str) -> str:
        if user and not _USER.fullmatch(user):
            raise ValueError("must be numeric, as in 1000 or 1000:1000")
        return user

    @field_validator("mounts")
    @classmethod
    def _are_mounts(cls, mounts: tuple[str, ...]) -> tuple[str, ...]:
        for mount in mounts:
            if not _MOUNT.fullmatch(mount):
                raise ValueError(f"{mount!r}: as in /on/this/machine:/inside or /on/this/machine:/inside:rw")
        return mounts

    def binds(self) -> list[tuple[str, str, bool]]:
        """Return the additional directories: source, target, and whether they are read-only."""
        found = [match for mount in self.mounts if (match := _MOUNT.fullmatch(mount))]
        return [(one["source"], one["target"], one["mode"] != ":rw") for one in found]
