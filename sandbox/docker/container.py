"""Build the engine's description of a container from a spec and the operator's settings; pure functions."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.docker.settings import DockerSettings
from sandbox.errors import ProviderRefused
from sandbox.exec.scripts import program
from sandbox.labels import key_of
from sandbox.model import Network, SandboxId, SandboxSpec
from sandbox.paths import check_source
from sandbox.port import CALLBACK_SOCKET, EGRESS_PORT, EGRESS_SOCKET, CallbackDirectories

LABEL, CONFIG_DIGEST = "dovecote.label", "dovecote.shape"
KEEPER_LABEL = "dovecote.keeper"
"""The label of a sandbox that names the container whose network it joins."""

PREFIX, KEEPER_PREFIX = "dovecote-box-", "dovecote-net-"
HOME = "/home/sandbox"
CALLBACKS = "/run/dovecote"
TASK_VARIABLE = "DOVECOTE_TASK"
"""The variable that marks the run or job that a process belongs to."""

OPEN_FILES = 4096
_HOSTNAME, _ROOT = "sandbox", "0:0"
_SLEEP_SCRIPT = "trap 'exit 0' TERM; while :; do sleep 2147483647 & wait $!; done"
_KEEPER_MEMORY, _KEEPER_PIDS = 64 * 1024 * 1024, 16
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MEGABYTE = 1024 * 1024
_INIT_SCRIPT = "trap 'kill -KILL -1' USR1; while :; do sleep 2147483647 & wait; done"
"""The container's first process. It reaps orphans, and on USR1 it kills all other processes in one call.
That needs no new process, so it works in a container that has reached its process limit.
"""

FORWARDER = "/opt/dovecote/forward_egress.py"
_FORWARDING_INIT_SCRIPT = (
    "trap 'kill -KILL -1' USR1; while :; do "
    f"python3 -I -S {FORWARDER} {CALLBACKS}/{EGRESS_SOCKET} {EGRESS_PORT} & wait $!; sleep 1 & wait $!; done"
)
"""The first process of a container with a restricted network: it also keeps the proxy's forwarder running."""

_NO_FORWARDER = (
    "network.mode restricted reaches no host here: the image has no python3, which connects to the proxy"
)
_AWAIT_FORWARDER = (
    f"if command -v python3 >/dev/null; then for waited in {' '.join('0' * 60)}; do "
    f"grep -q ' 0100007F:{EGRESS_PORT:04X} 00000000:0000 0A ' /proc/net/tcp && break; sleep 0.05; done; "
    f"unset waited; else echo '{_NO_FORWARDER}' >&2; fi; "
)
"""Before a command: wait up to three seconds until the forwarder of a new container listens."""


_SHARED_NETWORKS = ("host", "container:", "ns:")
_KERNEL_RUNTIMES = ("", "runc", "crun")
"""Runtimes whose containers send by the machine's kernel, through its hooks for packets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDefaults:
    """The settings and directories that all containers share."""

    settings: DockerSettings
    state: Path
    callbacks: CallbackDirectories

    @property
    def user(self) -> str:
        """Return the user of commands: the owner of the workspace's files, by default the gateway's user."""
        return self.settings.user or f"{os.getuid()}:{os.getgid()}"

    @property
    def forwarder(self) -> Path:
        """Return the copy of the forwarder that containers see: the engine knows our state directory only."""
        return self.state / "forward_egress.py"

    def home(self, sandbox_id: SandboxId) -> Path:
        """Return the directory of a persistent sandbox's HOME."""
        return self.state / "homes" / sandbox_id


def container_id(label: str) -> SandboxId:
    """Return the container's name, derived from the label, so that the engine rejects a second container."""
    return SandboxId(PREFIX + key_of("sandbox", label))


def is_container_id(sandbox_id: str) -> bool:
    """Return whether this is a container name of ours; no other text becomes part of a URL."""
    suffix = sandbox_id.removeprefix(PREFIX)
    return suffix != sandbox_id and suffix.isascii() and suffix.isalnum()


def keeper_id(sandbox_id: SandboxId) -> SandboxId:
    """Return the name of the container that keeps a sandbox's network."""
    return SandboxId(KEEPER_PREFIX + sandbox_id.removeprefix(PREFIX))


def sandbox_of(name: str) -> SandboxId:
    """Return the sandbox that a container of ours belongs to; its keeper belongs to it."""
    return SandboxId(PREFIX + name.removeprefix(KEEPER_PREFIX) if name.startswith(KEEPER_PREFIX) else name)


def is_filtered(spec: SandboxSpec, settings: DockerSettings) -> bool:
    """Return whether a sandbox has a network with a packet filter, and so a keeper."""
    return spec.network is Network.ALLOW_ALL and settings.network_filter


def validate_spec(spec: SandboxSpec, settings: DockerSettings) -> None:
    """Raise FeatureUnsupported or ProviderRefused for a spec that cannot be created."""
    if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
        raise ProviderRefused("the namespace must be one plain path component")
    for name, value in spec.env.items():
        if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
            raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")
    image = image_of(spec, settings)
    if image != settings.image and image not in settings.images:
        known = ", ".join((settings.image, *settings.images))
        raise ProviderRefused(f"the image {image!r} is not one the operator allows ({known})")
    if is_filtered(spec, settings):
        _validate_filter(settings)


def _validate_filter(settings: DockerSettings) -> None:
    """Raise ProviderRefused where a filter in the container's own network namespace would not hold."""
    if settings.network.startswith(_SHARED_NETWORKS):
        raise ProviderRefused(
            f"the network {settings.network!r} is not the sandbox's own: set `network` in [sandbox.docker] "
            "to a bridge"
        )
    if settings.runtime not in _KERNEL_RUNTIMES:
        raise ProviderRefused(
            f"the runtime {settings.runtime!r} has a network stack of its own, which the packet filter of "
            "allow-all does not see: use network.mode restricted, or filter the network in the machine's "
            "firewall and set `network_filter = false` in [sandbox.docker]"
        )


def image_of(spec: SandboxSpec, settings: DockerSettings) -> str:
    """Return the image to use."""
    return str(spec.options.get("image") or settings.image)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """The engine's descriptions of a sandbox: its container and, with a filtered network, the keeper."""

    sandbox: dict[str, Any]
    keeper: dict[str, Any] | None
    digest: str

    def fits(self, details: Mapping[str, Any]) -> bool:
        """Return whether an existing container was made by the same descriptions."""
        return bool(details["Config"]["Labels"].get(CONFIG_DIGEST) == self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What descriptions need to know of the engine; either may be empty."""

    seccomp: str = ""
    cgroup_driver: str = ""


def bodies(
    sandbox_id: SandboxId, spec: SandboxSpec, defaults: ContainerDefaults, facts: EngineFacts
) -> Bodies:
    """Return the engine's descriptions of the containers, with our labels."""
    is_kept = is_filtered(spec, defaults.settings)
    keeper = _keeper(defaults.settings) if is_kept else None
    described = _sandbox(sandbox_id, spec, defaults)
    if facts.seccomp:
        described["HostConfig"]["SecurityOpt"].append(f"seccomp={facts.seccomp}")
    if keeper is not None:
        network = _network(spec, defaults.settings)
        keeper["HostConfig"].update(network)
        keeper["ExposedPorts"] = _exposed(spec, defaults.settings)
        described["HostConfig"]["NetworkMode"] = f"container:{keeper_id(sandbox_id)}"
    else:
        described["HostConfig"].update(_network(spec, defaults.settings))
        described |= {"Hostname": _HOSTNAME, "ExposedPorts": _exposed(spec, defaults.settings)}
    digest = config_digest({"sandbox": described, "keeper": keeper})
    if parent := account_cgroup(spec.account, facts.cgroup_driver):
        described["HostConfig"]["CgroupParent"] = parent  # after the digest: what exists stays in use
    labels = {LABEL: spec.label, CONFIG_DIGEST: digest}
    named = {KEEPER_LABEL: keeper_id(sandbox_id)} if keeper is not None else {}
    return Bodies(
        sandbox={**described, "Labels": {**labels, **named}},
        keeper=None if keeper is None else {**keeper, "Labels": labels},
        digest=digest,
    )


def network_of(details: Mapping[str, Any]) -> Network:
    """Return the network mode that an existing container was made for, whatever its record says now."""
    if any(one.get("Destination") == FORWARDER for one in details.get("Mounts") or ()):
        return Network.RESTRICTED
    is_kept = KEEPER_LABEL in (details["Config"].get("Labels") or {})
    is_open = is_kept or details["HostConfig"]["NetworkMode"] != "none"
    return Network.ALLOW_ALL if is_open else Network.DENY_ALL


def account_cgroup(account: str, driver: str) -> str:
    """Return the control group of an account's containers; empty: the engine's own for all.

    The kernel divides the processors among the accounts' groups. The drivers name a parent differently: by a
    path, and by a slice (Docker's `--cgroup-parent`).
    """
    key = key_of("account", account)
    return {"cgroupfs": f"/dovecote/{key}", "systemd": f"dovecote-{key}.slice"}.get(driver, "")


def _keeper(settings: DockerSettings) -> dict[str, Any]:
    """Describe the container that owns the network. It sleeps; an exec has the capabilities of its user."""
    return {
        "Image": settings.image,
        "User": _ROOT,
        "Entrypoint": ["sh", "-c", _SLEEP_SCRIPT],
        "Cmd": [],
        "Hostname": _HOSTNAME,
        "HostConfig": {
            "Memory": _KEEPER_MEMORY,
            "MemorySwap": _KEEPER_MEMORY,
            "PidsLimit": _KEEPER_PIDS,
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "IpcMode": "private",
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _sandbox(sandbox_id: SandboxId, spec: SandboxSpec, defaults: ContainerDefaults) -> dict[str, Any]:
    """Describe the container without its network."""
    settings = defaults.settings
    return {
        "Image": image_of(spec, settings),
        "User": defaults.user,
        "Entrypoint": ["bash", "-c", _first_process(spec)],
        "Cmd": [],
        "WorkingDir": spec.mount,
        "HostConfig": {
            **_limits(spec, settings),
            **_isolation(settings),
            "Mounts": list(_mounts(sandbox_id, spec, defaults)),
            "Tmpfs": _tmpfs(spec, defaults.user),
        },
    }


def _first_process(spec: SandboxSpec) -> str:
    return _FORWARDING_INIT_SCRIPT if spec.network is Network.RESTRICTED else _INIT_SCRIPT


def config_digest(config: Mapping[str, Any]) -> str:
    """Return a digest of the description; a container with another digest is not reused."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:32]


def _limits(spec: SandboxSpec, settings: DockerSettings) -> dict[str, Any]:
    memory = spec.memory_mb * _MEGABYTE
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": spec.pids,
        "NanoCpus": int(spec.cpus * 1e9),
        "ShmSize": memory // 4,
        "Ulimits": [
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": settings.max_file_bytes, "Hard": settings.max_file_bytes},
        ],
    }


def _network(spec: SandboxSpec, settings: DockerSettings) -> dict[str, Any]:
    networked = spec.network is Network.ALLOW_ALL
    binding = [{"HostIp": settings.publish_address, "HostPort": ""}]
    return {
        "NetworkMode": settings.network if networked else "none",
        "PortBindings": {f"{port}/tcp": binding for port in _ports(spec, settings)},
    }


def _exposed(spec: SandboxSpec, settings: DockerSettings) -> dict[str, Any]:
    return {f"{port}/tcp": {} for port in _ports(spec, settings)}


def _isolation(settings: DockerSettings) -> dict[str, Any]:
    chosen = {"Runtime": settings.runtime} if settings.runtime else {}
    return {
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": settings.read_only_root,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        **chosen,
    }


def _ports(spec: SandboxSpec, settings: DockerSettings) -> Sequence[int]:
    return settings.ports if spec.network is Network.ALLOW_ALL else ()


def _mounts(
    sandbox_id: SandboxId, spec: SandboxSpec, defaults: ContainerDefaults
) -> Iterable[dict[str, Any]]:
    yield _bind(defaults.callbacks.directory(sandbox_id), CALLBACKS, read_only=True)
    if spec.network is Network.RESTRICTED:
        yield _bind(defaults.forwarder, FORWARDER, read_only=True)
    if spec.workspace is not None:
        yield _bind(spec.workspace, spec.mount, read_only=spec.read_only)
    if spec.persistent:
        yield _bind(defaults.home(sandbox_id), HOME, read_only=False)
    for source, target, read_only in defaults.settings.binds():
        yield _bind(Path(source), target, read_only=read_only)
    for one in spec.mounts:
        yield _bind(check_source(one), one.target, read_only=one.read_only)


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    where = str(source.absolute())
    return {"Type": "bind", "Source": where, "Target": target, "ReadOnly": read_only}


def _tmpfs(spec: SandboxSpec, user: str) -> dict[str, str]:
    """Return the tmpfs mounts; each may hold half of the memory limit.

    Podman rejects the options uid and gid, so the mounts belong to root and every user may write them.
    """
    size = f"rw,exec,nosuid,nodev,size={spec.memory_mb * _MEGABYTE // 2}"
    own = f"{size},mode={'0755' if user.partition(':')[0] == '0' else '0777'}"
    file_systems = {"/tmp": f"{size},mode=1777"}  # noqa: S108 - the sandbox's own
    if not spec.persistent:
        file_systems[HOME] = own
    if spec.workspace is None:
        file_systems[spec.mount] = own
    return file_systems


def environment(
    spec: SandboxSpec, image: Mapping[str, str], task: str, proxy: Mapping[str, str]
) -> list[str]:
    """Return a run's whole environment: declared variables, overridden by the runtime's and the proxy's."""
    own = {
        "PATH": f"{HOME}/.local/bin:{image.get('PATH') or _PATH}",
        "HOME": HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "NPM_CONFIG_PREFIX": f"{HOME}/.local",
        "DOVECOTE_WORKSPACE": spec.mount,
        "DOVECOTE_CALLBACK": f"{CALLBACKS}/{CALLBACK_SOCKET}",
        TASK_VARIABLE: task,
    }
    return [f"{name}={value}" for name, value in {**spec.env, **own, **proxy}.items()]


def image_variables(declared: Sequence[str], image: Mapping[str, str]) -> list[str]:
    """Return the names of variables that the image and the engine would add to a run's environment."""
    named = {entry.partition("=")[0] for entry in declared}
    return sorted(name for name in {*image, "HOSTNAME"} - named if VARIABLE_NAME.match(name))


def awaiting_forwarder(spec: SandboxSpec, script: str) -> str:
    """Return a script that begins when the sandbox's network is ready."""
    awaits = spec.network is Network.RESTRICTED and not spec.as_created
    return _AWAIT_FORWARDER + script if awaits else script


def run_command(mode: str, script: str, stdin: bytes, unset: Sequence[str]) -> list[str]:
    """Return the command line of a run; in mode `keep` its background processes are left running."""
    text = program("jobs.sh") + _program("sweep.sh") + _program("run.sh")
    return ["sh", "-c", text, "run", mode, script, str(len(stdin)), *unset]


def cleanup_command(task: str) -> list[str]:
    """Return the command line that kills the remaining processes of a run."""
    return ["sh", "-c", program("jobs.sh") + _program("sweep.sh") + 'clear_run "$1"', "sweep", task]


def _program(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
