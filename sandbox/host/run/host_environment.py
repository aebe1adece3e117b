"""What was detected on this host at start, and how command lines are built from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.host.isolation import bubblewrap, rlimits
from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.isolation.cgroups import CgroupLayout
from sandbox.host.isolation.network import Networking
from sandbox.host.isolation.runtimes import Runtime
from sandbox.host.run.launch import Launch
from sandbox.host.settings import HostSettings
from sandbox.model import Network, SandboxSpec
from sandbox.port import CALLBACK_SOCKET, EGRESS_PORT, EGRESS_SOCKET, ProviderContext

_PACKAGES = str(Path(__file__).resolve().parents[3])
_MAX_ARGUMENT_BYTES = 128 * 1024
MAX_SCRIPT_BYTES = _MAX_ARGUMENT_BYTES - 1
"""The longest script: Linux accepts no longer single argument (MAX_ARG_STRLEN)."""


def program_argv(module: str) -> list[str]:
    """Return the argv that runs `main` of one of our small modules, without site packages."""
    start = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", start]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPaths:
    """The files of one sandbox below the provider's state directory."""

    directory: Path
    callbacks: Path
    """The directory of its callback socket."""

    @property
    def jobs(self) -> Path:
        """Return the directory of its jobs."""
        return self.directory / "jobs"

    @property
    def label(self) -> Path:
        """Return the file with its label, written last: without it the sandbox does not exist."""
        return self.directory / "label"

    @property
    def frozen_marker(self) -> Path:
        """Return the file that exists while jobs of it are frozen."""
        return self.directory / "asleep"

    @property
    def home(self) -> Path:
        """Return the HOME of a persistent sandbox."""
        return self.directory / "home"

    @property
    def scratch(self) -> Path:
        """Return the working directory of a sandbox without a workspace."""
        return self.directory / "scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnvironment:
    """The detected host; `binary` is None if the operator allowed plain processes."""

    settings: HostSettings
    context: ProviderContext
    layout: CgroupLayout
    binary: Path | None
    runtimes: tuple[Runtime, ...]
    networking: Networking

    @property
    def etc(self) -> Path:
        """Return the generated files of /etc."""
        return self.context.state / "etc"

    @property
    def may_connect(self) -> bool:
        """Return whether a networked sandbox is possible; plain processes share the network in any mode."""
        return self.binary is None or self.networking.isolated

    @property
    def restriction_problem(self) -> str | None:
        """Return why no sandbox with a restricted network is possible, or None."""
        if self.binary is None:
            return "commands run as plain processes, which share the host's network; use namespaces or docker"
        if self._python() is None:
            return (
                "the sandbox needs python3 to reach the proxy, and none was found on this host; install "
                "python3, or list its directory in sandbox.host.runtime_directories"
            )
        return None

    def launch(self, spec: SandboxSpec, paths: SandboxPaths, group: Cgroup, script: str) -> Launch:
        """Return how to run a bash script in a sandbox."""
        prefix = rlimits.limit_argv(self.layout, spec, group, self.settings.max_file_bytes)
        process_prefix = rlimits.process_limit(self.layout, spec, own_namespace=self.binary is not None)
        suffix = [*process_prefix, *self._forwarder(spec), "/bin/bash", "-c", script]
        if self.binary is None:
            return self._plain_launch(spec, paths, group, prefix=prefix, suffix=suffix)
        outer = self.networking.wrapper() if spec.network is Network.ALLOW_ALL else ()
        return Launch(
            prefix=prefix,
            program=[*outer, str(self.binary)],
            suffix=suffix,
            secret=bubblewrap.arguments(spec, self._mounts(spec, paths)),
            environment={},
            group=group,
        )

    def _forwarder(self, spec: SandboxSpec) -> list[str]:
        """Return the command line before the command by which a restricted sandbox reaches the proxy."""
        python = self._python()
        if spec.network is not Network.RESTRICTED or python is None:
            return []
        program = f"{python.path}/{python.name}" if python.path else str(python.program)
        socket = f"{bubblewrap.CALLBACKS}/{EGRESS_SOCKET}"
        return [program, "-I", "-S", bubblewrap.FORWARDER, socket, str(EGRESS_PORT), "--"]

    def _python(self) -> Runtime | None:
        return next((one for one in self.runtimes if one.name == "python3"), None)

    def completion_argv(self, program: Path, callbacks: Path) -> tuple[list[str], list[str]]:
        """Return the argv and secret arguments that run the callback program in namespaces of its own.

        Only the sandbox's own callback directory is visible there. Only python3 of /usr can be used there;
        without it, or without namespaces, the program runs beside the supervisor.
        """
        inside = self._python_inside()
        if self.binary is None or inside is None:
            return [sys.executable, "-I", "-S", str(program)], []
        spec = SandboxSpec(label="", namespace="callback", memory_mb=64)
        mounts = bubblewrap.Mounts(etc=self.etc, callbacks=callbacks)
        words = bubblewrap.arguments(spec, mounts)
        visible = ["--ro-bind", str(program), "/callback.py"]
        command = [str(inside.program), "-I", "-S", "/callback.py"]
        return [str(self.binary), "--args", "{secret}", "--", *command], [*visible, *words]

    def _python_inside(self) -> Runtime | None:
        """Return the python3 of /usr that is visible in namespaces, or None without namespaces."""
        found = (one for one in self.runtimes if one.name == "python3" and not one.folder)
        return None if self.binary is None else next(found, None)

    def callback_socket(self, callbacks: Path) -> str:
        """Return the path of the callback socket as the callback program sees it."""
        if self._python_inside() is not None:
            return f"{bubblewrap.CALLBACKS}/{CALLBACK_SOCKET}"
        return str(callbacks / CALLBACK_SOCKET)

    def _mounts(self, spec: SandboxSpec, paths: SandboxPaths) -> bubblewrap.Mounts:
        networked = spec.network is Network.ALLOW_ALL
        return bubblewrap.Mounts(
            etc=self.etc,
            callbacks=paths.callbacks,
            home=paths.home if spec.persistent else None,
            runtimes=self.runtimes,
            resolver=self.networking.resolver if networked else None,
            share_network=networked,
            is_restricted=spec.network is Network.RESTRICTED,
        )

    def _plain_launch(
        self, spec: SandboxSpec, paths: SandboxPaths, group: Cgroup, *, prefix: list[str], suffix: list[str]
    ) -> Launch:
        directory = spec.workspace or paths.scratch
        found = [
            path for runtime in self.runtimes if runtime.folder for path in (str(runtime.program.parent),)
        ]
        environment: Mapping[str, str] = {
            **spec.env,
            **bubblewrap.fixed_environment(),
            "PATH": ":".join([str(paths.home / ".local/bin"), *found, "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": str(paths.home),
            "NPM_CONFIG_PREFIX": str(paths.home / ".local"),
            "DOVECOTE_WORKSPACE": str(directory),
            "DOVECOTE_CALLBACK": str(paths.callbacks / CALLBACK_SOCKET),
        }
        return Launch(
            prefix=prefix,
            program=program_argv("sandbox.host.run.subreaper"),
            suffix=suffix,
            environment=dict(environment),
            group=group,
            directory=str(directory),
        )
