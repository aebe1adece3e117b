"""Images that lack a program: the error or the output names the program and what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from aiodocker.exceptions import DockerError

from sandbox.docker.container import awaiting_forwarder
from sandbox.docker.errors import translate_error
from sandbox.errors import ProviderRefused
from sandbox.model import Network, SandboxSpec

DOCKER = (
    "OCI runtime create failed: runc create failed: unable to start container process: "
    'exec: "bash": executable file not found in $PATH: unknown'
)
PODMAN = "crun: executable file `bash` not found in $PATH: No such file or directory: OCI runtime error"


@pytest.mark.parametrize(("status", "message"), [(400, DOCKER), (500, PODMAN)])
def test_an_image_without_bash_is_named_as_the_reason(status: int, message: str) -> None:
    """Docker and Podman report what their runtime could not start; the error says what the image needs."""
    error = translate_error(DockerError(status, message))
    assert isinstance(error, ProviderRefused)
    assert "the image has no bash" in str(error)
    assert "options.image" in str(error)


def test_a_full_disk_of_the_engine_is_named_without_its_paths() -> None:
    """People in chats read the error: it says who can help, and nothing about the engine's machine."""
    message = "write /var/lib/docker/overlay2/542473335fa-init/link: no space left on device"
    error = translate_error(DockerError(500, message))
    assert isinstance(error, ProviderRefused)
    assert str(error) == "the disk of the container engine is full; an operator must free space on it"


def test_a_restricted_network_without_python3_says_so(tmp_path: Path) -> None:
    """A command runs at once, and its output says why no host is reached."""
    spec = SandboxSpec(label="l", namespace="n", network=Network.RESTRICTED)
    script = awaiting_forwarder(spec, "echo ran; exit 3")
    done = subprocess.run(
        ["/bin/bash", "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr.strip() == (
        "network.mode restricted reaches no host here: the image has no python3, which connects to the proxy"
    )
