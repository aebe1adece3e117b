"""Write the tests' image as a docker archive, for a cluster that has no registry: `cluster_image.py FILE`.

The image has this machine's own programs, libraries and python. Its name is `localhost/dovecote-test:1`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from docker_engine import write_image

NAME = "localhost/dovecote-test:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(target: Path, machine: str) -> None:
    """Write an image of one layer in the format of `docker save`."""
    with tempfile.TemporaryDirectory() as directory:
        layer = Path(directory, "layer.tar")
        write_image(layer)
        with layer.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        config = {
            "architecture": _ARCHITECTURES[machine],
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["bash"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
        with tarfile.open(target, "w") as archive:
            archive.add(layer, arcname="layer.tar")
            _add(archive, "config.json", config)
            _add(archive, "manifest.json", manifest)


def _add(archive: tarfile.TarFile, name: str, value: object) -> None:
    content = json.dumps(value).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]), os.uname().machine)
