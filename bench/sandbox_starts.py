"""Compare starts, commands and resumptions of sandboxes with the engine's own client, in turn in one run.

    python -m bench.sandbox_starts docker --host unix:///var/run/docker.sock --image python:3.12-slim
    python -m bench.sandbox_starts kubernetes --kubeconfig FILE --image python:3.12-slim [--count 10]

A start is timed until its first command, `true`, has ended; so is a resumption. The client's ways are `docker
run`, `exec` and `unpause`, and `kubectl run`, `wait` and `exec`. It resumes a pod by running it again on its
claim, as the provider does. What ends or suspends a sandbox between two samples is not timed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from bench.sandbox_exec import TimedCall, measure, provider_call
from sandbox.docker.settings import DockerSettings
from sandbox.kubernetes.settings import KubernetesSettings
from sandbox.model import SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext
from sandbox.registry import plugin

NAME = "dovecote-bench"
KEEP = ("sleep", "infinity")
RUN_AS = {"runAsUser": 1000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
LIMITS = {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class EngineClient(Protocol):
    """The engine's own command line, with one sandbox."""

    async def start(self) -> None:
        """Start it and run its first command."""

    async def run(self) -> None:
        """Run a command."""

    async def suspend(self) -> None:
        """Suspend it."""

    async def resume(self) -> None:
        """Resume it and run a command."""

    async def end(self) -> None:
        """Remove it; idempotent."""


async def run_words(*words: str, check: bool = True, stdin: str = "") -> None:
    """Run a program without output; raises RuntimeError with its errors if it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    _, errors = await process.communicate(stdin.encode())
    if check and process.returncode != 0:
        raise RuntimeError(f"{words}: {errors.decode()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerClient:
    """`docker run`, `exec`, `pause` and `unpause`."""

    host: str
    image: str

    async def start(self) -> None:
        """Run a container and its first command."""
        await self._docker("run", "--detach", "--network", "none", "--name", NAME, self.image, *KEEP)
        await self.run()

    async def run(self) -> None:
        """Run a command."""
        await self._docker("exec", NAME, "true")

    async def suspend(self) -> None:
        """Freeze it."""
        await self._docker("pause", NAME)

    async def resume(self) -> None:
        """Thaw it."""
        await self._docker("unpause", NAME)
        await self.run()

    async def end(self) -> None:
        """Remove it."""
        await self._docker("rm", "--force", NAME, check=False)

    async def _docker(self, *words: str, check: bool = True) -> None:
        await run_words("docker", "--host", self.host, *words, check=check)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubectlClient:
    """`kubectl run`, `wait`, `exec` and `delete`; a claim holds what is resumed."""

    kubeconfig: str
    namespace: str
    image: str

    async def start(self) -> None:
        """Run a pod without a claim, and its first command."""
        await self._run_pod()

    async def run(self) -> None:
        """Run a command."""
        await self._kubectl("exec", NAME, "--", "true")

    async def suspend(self) -> None:
        """Delete the pod; make its claim if there is none."""
        resources = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": resources}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": NAME},
            "spec": spec,
        }
        await self._kubectl("apply", "--filename", "-", stdin=json.dumps(claim))
        await self._kubectl("delete", "pod", NAME, "--grace-period=0")

    async def resume(self) -> None:
        """Run the pod again on its claim."""
        await self._run_pod({"name": "home", "persistentVolumeClaim": {"claimName": NAME}})

    async def end(self) -> None:
        """Delete pod and claim."""
        await self._kubectl("delete", f"pod/{NAME}", f"pvc/{NAME}", "--ignore-not-found", "--grace-period=0")

    async def _run_pod(self, volume: dict[str, Any] | None = None) -> None:
        container: dict[str, Any] = {"name": NAME, "image": self.image, "command": list(KEEP)}
        container |= {"resources": LIMITS, "securityContext": CONFINED}
        if volume:
            container["volumeMounts"] = [{"name": "home", "mountPath": "/mnt"}]
        spec = {"containers": [container], "securityContext": RUN_AS, "volumes": [volume] if volume else []}
        options = ("--image", self.image, "--restart=Never", "--overrides", json.dumps({"spec": spec}))
        await self._kubectl("run", NAME, *options)
        await self._kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")
        await self.run()

    async def _kubectl(self, *words: str, check: bool = True, stdin: str = "") -> None:
        place = ("--kubeconfig", self.kubeconfig, "--namespace", self.namespace)
        await run_words("kubectl", *place, *words, check=check, stdin=stdin)


async def start_through(provider: Provider) -> Callable[[], Awaitable[None]]:
    """Start a sandbox, run its first command, and return what destroys it."""
    sandbox = await provider.create(SandboxSpec(label=f"{NAME}-{os.urandom(4).hex()}", namespace="bench"))
    await provider_call(sandbox)()

    async def destroy() -> None:
        await provider.destroy(sandbox.id)

    return destroy


async def measure_starts(client: EngineClient, provider: Provider, count: int) -> dict[str, list[float]]:
    """Return milliseconds of starts; each is ended before the next."""
    taken: dict[str, list[float]] = {}
    for _ in range(count):
        ends: list[Callable[[], Awaitable[None]]] = []

        async def ours(ends: list[Callable[[], Awaitable[None]]] = ends) -> None:
            ends.append(await start_through(provider))

        for way, values in (await measure({"client": client.start, "provider": ours}, 1)).items():
            taken.setdefault(way, []).extend(values)
        for end in [client.end, *ends]:
            await end()
    return taken


async def measure_life(
    client: EngineClient, provider: Provider, count: int
) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds of commands and of resumptions in one sandbox each."""
    spec = SandboxSpec(label=f"{NAME}-reserved", namespace="bench", persistent=True)
    sandbox = await provider.create(spec)
    commands = provider_call(sandbox)
    await asyncio.gather(client.start(), commands())
    ways: dict[str, TimedCall] = {"client": client.run, "provider": commands}
    resumes: dict[str, list[float]] = {"client": [], "provider": []}
    taken = {"command": await measure(ways, 3 * count), "resume": resumes}
    for _ in range(count):
        await asyncio.gather(client.suspend(), sandbox.suspend())
        for way, values in (await measure({"client": client.resume, "provider": commands}, 1)).items():
            resumes[way] += values
    await asyncio.gather(client.end(), provider.destroy(sandbox.id))
    return taken


def table(engine: str, taken: dict[str, dict[str, list[float]]]) -> str:
    """Return the measurements as a Markdown table."""
    lines = ["| engine | what | client p50 ms | provider p50 ms | × client |", "|---|---|---|---|---|"]
    for what, ways in taken.items():
        raw, ours = median(ways["client"]), median(ways["provider"])
        lines.append(f"| {engine} | {what} | {raw:.0f} | {ours:.0f} | {ours / raw:.2f} |")
    return "\n".join(lines)


async def main(chosen: argparse.Namespace) -> None:
    """Measure and print the table."""
    settings: DockerSettings | KubernetesSettings
    client: EngineClient
    if chosen.engine == "docker":
        settings = DockerSettings(host=chosen.host, image=chosen.image, pull=False, suspend="pause")
        client = DockerClient(host=chosen.host, image=chosen.image)
    else:
        settings = KubernetesSettings(kubeconfig=chosen.kubeconfig, image=chosen.image, controller="off")
        client = KubectlClient(kubeconfig=chosen.kubeconfig, image=chosen.image, namespace=settings.namespace)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        context = ProviderContext(
            state=here / "state", callbacks=CallbackDirectories(root=here / "callbacks")
        )
        async with plugin(chosen.engine).open(settings, context) as provider:
            await client.end()
            taken = {"start": await measure_starts(client, provider, chosen.count)}
            taken |= await measure_life(client, provider, chosen.count)
    print(table(chosen.engine, taken))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; wall time, so other load adds up")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=["docker", "kubernetes"])
    parser.add_argument("--host", default="unix:///var/run/docker.sock")
    parser.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG", ""))
    parser.add_argument("--image", default="python:3.12-slim")
    parser.add_argument("--count", type=int, default=10)
    asyncio.run(main(parser.parse_args()))
