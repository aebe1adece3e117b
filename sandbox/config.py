"""Validate `{name, config}` of a sandbox record: the fields, their limits and what a provider supports."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field, StrictBool, StrictStr, model_validator

from egress.proxy.rules import parse_domain
from egress.typed_model import TypedModel
from sandbox.model import BindMount, ResourceSupport

LOADER_VARIABLES = re.compile(
    r"^(LD_.*|DYLD_.*|NODE_OPTIONS|BASH_ENV|ENV|PYTHONSTARTUP|PYTHONHOME|PERL5OPT|RUBYOPT|GIT_.*|IFS|DOVECOTE_.*)$"
)
"""Names that change what a program loads before it starts. They are rejected (SECURITY M12)."""

MAX_NETWORK_ENTRIES = 256
"""Domains, and networks, of one sandbox record."""

MAX_MOUNTS = 8
"""Directories of the machine in one sandbox."""

MOUNT_TARGET = re.compile(r"^/mnt(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]{1,64}){1,4}$")

SCREENS = ("browser", "computer")
"""Runtimes that a record declares for the tools of the same names."""

DECLARED = ("git", *SCREENS)
"""Runtimes that a sandbox offers only if its record lists them."""

MIN_SCREEN_MEMORY_MB = 512
"""The least memory in which a browser opens ordinary pages."""

WORKSPACES_ROOT = "/mnt/workspaces"
"""The directory with all workspaces, inside every sandbox."""

HOME_PATH = re.compile(r"^/home/[a-z_][a-z0-9_-]{0,31}$")
"""A directory that a provider can use as HOME."""

EXTERNAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""The name or id of an external sandbox; no other text becomes part of a URL."""

VARIABLE_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One problem of a config: a JSON pointer below `config`, and what is allowed."""

    pointer: str
    detail: str


def unsupported_options(
    config: SandboxConfig, provider: str, remedies: Mapping[str, str]
) -> Iterator[ConfigProblem]:
    """Yield a problem for each option that is set but unsupported by a provider, with what to do instead."""
    for field, remedy in remedies.items():
        if getattr(config.options, field) is not None:
            name = type(config.options).model_fields[field].alias or field
            yield ConfigProblem(
                pointer=f"/options/{name}", detail=f"{name} is not supported on {provider}: {remedy}"
            )


def home_problems(config: SandboxConfig, provider: str, home: str) -> Iterator[ConfigProblem]:
    """Yield a problem if `persistentHome` names another directory than the provider's HOME."""
    wanted = config.options.persistent_home
    if isinstance(wanted, str) and wanted != home:
        detail = f"HOME is {home} on {provider}: use true, or that path"
        yield ConfigProblem(pointer="/options/persistentHome", detail=detail)


def proxied_network_problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    """Yield the problems of the lists of a restricted network that the gateway's proxy serves."""
    checks: tuple[tuple[str, tuple[str, ...], Callable[[str], object]], ...] = (
        ("allowDomains", config.network.allow_domains, parse_domain),
        ("allowCidrs", config.network.allow_cidrs, ip_network),
    )
    for name, entries, parse in checks:
        if len(entries) > MAX_NETWORK_ENTRIES:
            detail = f"{len(entries)} entries are too many: at most {MAX_NETWORK_ENTRIES}"
            yield ConfigProblem(pointer=f"/network/{name}", detail=detail)
        for place, entry in enumerate(entries[:MAX_NETWORK_ENTRIES]):
            try:
                parse(entry)
            except ValueError as error:
                detail = f"{entry[:80]!r}: {error}"
                yield ConfigProblem(pointer=f"/network/{name}/{place}", detail=detail)


class _StrictModel(TypedModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def normalize(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config (or a patch of one) with `internet: true|false` replaced by the network mode.

    `internet` may be at the top level or in `network`. A value that is no boolean, or that contradicts the
    mode, is left unchanged, so that validation rejects it.
    """
    network = raw.get("network", {})
    if not isinstance(network, Mapping):
        return raw
    declared = [parent["internet"] for parent in (raw, network) if "internet" in parent]
    modes = ["allow-all" if one else "deny-all" for one in declared]
    modes += [network[key] for key in network if key == "mode"]
    if not declared or not all(isinstance(one, bool) for one in declared):
        return raw
    if any(mode != modes[0] for mode in modes):
        return raw
    top, below = ({key: parent[key] for key in parent if key != "internet"} for parent in (raw, network))
    return {**top, "network": {**below, "mode": modes[0]}}


class NetworkConfig(_StrictModel):
    """The networks that the sandbox may reach."""

    mode: Literal["allow-all", "deny-all", "restricted"] = "deny-all"
    allow_domains: tuple[StrictStr, ...] = Field(default=(), alias="allowDomains")
    allow_cidrs: tuple[StrictStr, ...] = Field(default=(), alias="allowCidrs")


class SandboxOptions(_StrictModel):
    """The provider's options; each provider supports some of them."""

    image: str | None = None
    template: str | None = None
    snapshot: str | None = None
    cpu: Annotated[float, Field(gt=0, le=64)] | None = None
    memory_gb: Annotated[float, Field(gt=0, le=256)] | None = Field(default=None, alias="memoryGb")
    disk_gb: Annotated[float, Field(gt=0, le=4096)] | None = Field(default=None, alias="diskGb")
    workspace_root: str | None = Field(default=None, alias="workspaceRoot")
    persistent_home: StrictBool | StrictStr | None = Field(default=None, alias="persistentHome")
    """Whether HOME is kept, or the directory that is HOME and is kept."""
    mount_aws_s3_buckets: StrictBool | None = Field(default=None, alias="mountAwsS3Buckets")
    """Whether workspaces come from the workspace store, as they always do where this may be set."""
    api_key: str | None = Field(default=None, alias="apiKey", repr=False)
    api_url: str | None = Field(default=None, alias="apiUrl")
    organization_id: str | None = Field(default=None, alias="organizationId")
    target: str | None = None
    persistent_disk_gb: Annotated[float, Field(gt=0)] | None = Field(default=None, alias="persistentDiskGb")
    auto_archive_seconds: Annotated[int, Field(ge=0)] | None = Field(default=None, alias="autoArchiveSeconds")


class MountConfig(_StrictModel):
    """A directory of the machine, which the operator lists, and where it is in the sandbox."""

    source: StrictStr
    target: StrictStr
    read_only: StrictBool = Field(default=True, alias="readOnly")


class LifecycleConfig(_StrictModel):
    """Seconds until a reserved sandbox is suspended, and until it is deleted."""

    idle_timeout: Annotated[int, Field(ge=1)] = Field(default=900, alias="idleTimeoutSeconds")
    max_lifetime: Annotated[int, Field(ge=1)] = Field(default=7 * 86400, alias="maxLifetimeSeconds")
    keep_awake: StrictBool = Field(default=False, alias="keepAwake")
    """Whether a running service keeps the sandbox awake, as a running job does."""


_EXTERNAL_DEFAULTS: Mapping[str, Any] = {"persistent": True, "network": {"mode": "allow-all"}}
"""An external sandbox stays when a turn ends, and has the network that its owner gave it."""


class SandboxConfig(_StrictModel):
    """A sandbox record's `config`, with defaults filled in."""

    provider: str = "host"
    options: SandboxOptions = SandboxOptions()
    network: NetworkConfig = NetworkConfig()
    permission_mode: Literal["ask", "edit", "bypass"] = Field(default="ask", alias="permissionMode")
    runtimes: tuple[Literal["bash", "python", "node", "git", "browser", "computer"], ...] = (
        "bash",
        "python",
        "node",
    )
    timeout: Annotated[int, Field(ge=1, strict=True)] = 120
    memory_limit: Annotated[int, Field(ge=16, strict=True)] = Field(default=512, alias="memoryLimit")
    output_limit: Annotated[int, Field(ge=1, le=262144, strict=True)] = Field(
        default=65536, alias="outputLimitBytes"
    )
    env_vars: dict[str, StrictStr] = Field(default_factory=dict, alias="envVars", max_length=1000)
    persistent: bool = False
    isolation: Literal["WORKSPACE", "SESSION", "USER", "AGENT", "GLOBAL"] | None = None
    lifecycle: LifecycleConfig = LifecycleConfig()
    snapshot: StrictBool = True
    mounts: Annotated[tuple[MountConfig, ...], Field(max_length=MAX_MOUNTS)] = ()
    external: StrictStr | None = None
    """The name or id of a sandbox that Dovecote did not create; it is used and never changed or deleted."""

    @property
    def bind_mounts(self) -> tuple[BindMount, ...]:
        """The mounted directories."""
        return tuple(
            BindMount(source=one.source, target=one.target, read_only=one.read_only) for one in self.mounts
        )

    @property
    def screens(self) -> tuple[str, ...]:
        """The runtimes that show something. They need more memory and processes than others."""
        return tuple(one for one in self.runtimes if one in SCREENS)

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        config = normalize(raw)
        if "internet" in config:
            raise ValueError("internet must be true or false and must not contradict network.mode")
        return {**_EXTERNAL_DEFAULTS, **config} if config.get("external") is not None else config


class ProviderLimits(Protocol):
    """The constraints of a provider on configs; `sandbox.port.ProviderPlugin` implements it."""

    @property
    def name(self) -> str:
        """The provider's name."""

    @property
    def features(self) -> frozenset[Any]:
        """The features it declares."""

    @property
    def max_timeout(self) -> float:
        """The longest time-out of a command, in seconds."""

    @property
    def max_memory_mb(self) -> int | None:
        """The largest memory limit in MB; None means no limit."""

    @property
    def resources(self) -> ResourceSupport:
        """The resource settings that it applies."""

    @property
    def check(self) -> Callable[[SandboxConfig], Sequence[ConfigProblem]]:
        """Return the problems found by the provider's own rules."""


def problems(config: SandboxConfig, plugin: ProviderLimits) -> Sequence[ConfigProblem]:
    """Return every problem of `config` under `plugin`, including those of the provider's own rules."""
    own = (
        *_limit_problems(config, plugin),
        *_resource_problems(config, plugin),
        *_persistence_problems(config, plugin),
        *_screen_problems(config),
        *_environment_problems(config),
        *_option_problems(config, plugin),
        *_mount_problems(config, plugin),
        *_external_problems(config, plugin),
    )
    return (*own, *plugin.check(config))


def _resource_problems(config: SandboxConfig, plugin: ProviderLimits) -> Iterator[ConfigProblem]:
    if config.external is None:  # else its owner decides about all of them
        for pointer, detail in plugin.resources.refused(config, plugin.name):
            yield ConfigProblem(pointer=pointer, detail=detail)


def _persistence_problems(config: SandboxConfig, plugin: ProviderLimits) -> Iterator[ConfigProblem]:
    if config.persistent and "persistent" not in plugin.features:
        yield ConfigProblem(
            pointer="/persistent",
            detail=f"true is not possible on {plugin.name}, which keeps no sandbox between runs: use false",
        )
    if config.isolation is not None and not config.persistent:
        yield ConfigProblem(
            pointer="/isolation",
            detail=f"{config.isolation} applies to reserved sandboxes: set persistent: true",
        )


def _option_problems(config: SandboxConfig, plugin: ProviderLimits) -> Iterator[ConfigProblem]:
    options = config.options
    if options.workspace_root is not None and options.workspace_root.rstrip("/") != WORKSPACES_ROOT:
        detail = f"workspaces are at {WORKSPACES_ROOT} in every sandbox: use that path or leave it out"
        yield ConfigProblem(pointer="/options/workspaceRoot", detail=detail)
    if options.mount_aws_s3_buckets and "carries_workspace" not in plugin.features:
        detail = (
            f"true has no meaning on {plugin.name}, where workspaces need no bucket mounts: leave it out; "
            "the operator selects a bucket for all workspaces with workspaces.store"
        )
        yield ConfigProblem(pointer="/options/mountAwsS3Buckets", detail=detail)
    for field in ("api_key", "api_url", "organization_id", "target"):
        if getattr(options, field) is not None:
            name = type(options).model_fields[field].alias or field
            detail = (
                f"{name} is the operator's: set it in [sandbox.{plugin.name}], and leave it out of records"
            )
            yield ConfigProblem(pointer=f"/options/{name}", detail=detail)


def _mount_problems(config: SandboxConfig, plugin: ProviderLimits) -> Iterator[ConfigProblem]:
    if config.mounts and "bind_mounts" not in plugin.features:
        detail = f"directories of the machine cannot be mounted on {plugin.name}: use a workspace"
        yield ConfigProblem(pointer="/mounts", detail=detail)
    taken = [WORKSPACES_ROOT]
    for place, one in enumerate(config.mounts):
        if (
            not one.source.startswith("/")
            or posixpath.normpath(one.source) != one.source
            or "\0" in one.source
        ):
            detail = f"{one.source[:80]!r} is not a plain absolute path"
            yield ConfigProblem(pointer=f"/mounts/{place}/source", detail=detail)
        inside = one.target
        if not MOUNT_TARGET.fullmatch(inside) or any(
            f"{inside}/".startswith(f"{other}/") or f"{other}/".startswith(f"{inside}/") for other in taken
        ):
            detail = (
                f"{inside[:80]!r} must be a free path below /mnt, as in /mnt/data, not in {WORKSPACES_ROOT}"
            )
            yield ConfigProblem(pointer=f"/mounts/{place}/target", detail=detail)
        taken.append(inside)


_OWNERS = ("memory_limit", "lifecycle", "isolation", "mounts", "snapshot", "runtimes")
"""What the owner of an external sandbox decides, or what would change it."""


def _external_problems(config: SandboxConfig, plugin: ProviderLimits) -> Iterator[ConfigProblem]:
    if config.external is None:
        return
    if "external" not in plugin.features:
        detail = f"{plugin.name} cannot use a sandbox that Dovecote did not create: leave it out"
        yield ConfigProblem(pointer="/external", detail=detail)
    elif not EXTERNAL_NAME.fullmatch(config.external):
        detail = f"{config.external[:80]!r} must be a name or id of letters, digits, '_', '.' and '-'"
        yield ConfigProblem(pointer="/external", detail=detail)
    if not config.persistent:
        detail = "an external sandbox stays when a turn ends: leave persistent out or set it to true"
        yield ConfigProblem(pointer="/persistent", detail=detail)
    if config.network.mode != "allow-all":
        detail = f"{config.network.mode!r} cannot be enforced in an external sandbox: leave network out"
        yield ConfigProblem(pointer="/network/mode", detail=detail)
    given = [name for name in _OWNERS if name in config.model_fields_set and getattr(config, name)]
    if config.options.model_dump(exclude_none=True):
        given.append("options")
    for name in given:
        alias = SandboxConfig.model_fields[name].alias or name if name != "options" else name
        detail = f"an external sandbox keeps what its owner gave it: leave {alias} out"
        yield ConfigProblem(pointer=f"/{alias}", detail=detail)


def _screen_problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    for runtime in config.screens:
        if not config.persistent:
            detail = f"{runtime} keeps its windows between calls: set persistent: true"
            yield ConfigProblem(pointer="/runtimes", detail=detail)
        if config.memory_limit < MIN_SCREEN_MEMORY_MB:
            detail = f"{config.memory_limit} is too little for {runtime}: at least {MIN_SCREEN_MEMORY_MB} MB"
            yield ConfigProblem(pointer="/memoryLimit", detail=detail)


def _limit_problems(config: SandboxConfig, plugin: ProviderLimits) -> Iterator[ConfigProblem]:
    if config.timeout > plugin.max_timeout:
        yield ConfigProblem(
            pointer="/timeout",
            detail=f"{config.timeout} is too long: at most {plugin.max_timeout} seconds on {plugin.name}",
        )
    if plugin.max_memory_mb is not None and config.memory_limit > plugin.max_memory_mb:
        yield ConfigProblem(
            pointer="/memoryLimit",
            detail=f"{config.memory_limit} is too large: at most {plugin.max_memory_mb} MB on {plugin.name}",
        )
    limited = config.network.mode == "restricted"
    if not limited and (config.network.allow_domains or config.network.allow_cidrs):
        yield ConfigProblem(
            pointer="/network",
            detail=f"allowDomains and allowCidrs need mode 'restricted', not {config.network.mode!r}",
        )


def _environment_problems(config: SandboxConfig) -> Iterator[ConfigProblem]:
    for name, value in config.env_vars.items():
        if not VARIABLE_NAME.match(name):
            yield ConfigProblem(
                pointer=f"/envVars/{name}",
                detail=f"{name!r} is not a variable name: use letters, digits and _, no digit first",
            )
        elif LOADER_VARIABLES.match(name):
            yield ConfigProblem(
                pointer=f"/envVars/{name}", detail=f"{name} is not allowed: it changes what programs load"
            )
        elif "\0" in value:
            yield ConfigProblem(pointer=f"/envVars/{name}", detail="a value must not contain NUL")
