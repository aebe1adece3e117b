"""Compare a command through the docker provider with the engine's own exec, side by side in one run.

    python -m bench.docker_exec --host unix:///var/run/docker.sock --image python:3.12-slim [--count 100]

Each row is `bash -c true` in one container: by the command line (`docker exec`), by the three API calls that
it makes, and through the docker provider. The provider adds limits of output, a clean environment, and the
guarantee that no process is left. The rows alternate, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from statistics import median, quantiles

from aiodocker import Docker

from bench.sandbox_exec import TimedCall, measure, provider_call, subprocess_call
from sandbox.docker.settings import DockerSettings
from sandbox.model import SandboxSpec
from sandbox.port import CallbackDirectories, ProviderContext
from sandbox.registry import plugin

API = "API"


def engine_exec(docker: Docker, container: str) -> TimedCall:
    """Return a function that makes the three API calls of an exec."""

    async def run() -> None:
        execution = await docker.containers.container(container).exec(["bash", "-c", "true"])
        async with execution.start(detach=False) as stream:
            while await stream.read_out() is not None:
                continue
        if (await execution.inspect())["ExitCode"] != 0:
            raise RuntimeError("the command failed")

    return run


def table(taken: dict[str, list[float]]) -> str:
    """Return the measurements as a Markdown table."""
    lines = ["| way | p50 ms | p99 ms | ratio to the API |", "|---|---|---|---|"]
    for name, values in taken.items():
        high = quantiles(values, n=100)[98]
        lines.append(
            f"| {name} | {median(values):.1f} | {high:.1f} | {median(values) / median(taken[API]):.2f} |"
        )
    return "\n".join(lines)


async def main(host: str, image: str, count: int) -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        context = ProviderContext(
            state=here / "state", callbacks=CallbackDirectories(root=here / "callbacks")
        )
        settings = DockerSettings(host=host, image=image)
        async with plugin("docker").open(settings, context) as provider, Docker(url=host) as docker:
            sandbox = await provider.create(
                SandboxSpec(label=name, namespace="bench", workspace=here / "workspace")
            )
            ways: dict[str, TimedCall] = {
                API: engine_exec(docker, sandbox.id),
                "docker provider": provider_call(sandbox),
            }
            if program := shutil.which("docker"):
                ways["docker exec"] = subprocess_call(
                    program, "-H", host, "exec", sandbox.id, "bash", "-c", "true"
                )
            taken = await measure(ways, count)
            await provider.destroy(sandbox.id)
    print(table(taken))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; wall time, so other load adds up")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--host", default="unix:///var/run/docker.sock")
    parser.add_argument("--image", default="python:3.12-slim")
    parser.add_argument("--count", type=int, default=100)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.host, chosen.image, chosen.count))
