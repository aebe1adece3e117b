"""Write the bill of materials of a root file system: python -m scripts.sbom FILE.tar > FILE.cdx.json.

The result is CycloneDX 1.5 JSON: Debian's packages, and the programs that `images/sandbox/install.sh` adds.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STATUS = "var/lib/dpkg/status"
WHEELS = Path(__file__).parents[1] / "images/sandbox/wheels.txt"
_FIELD = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)
_PIN = re.compile(r"^([a-z0-9-]+)==([\w.]+)", re.MULTILINE)


def debian_packages(status: str) -> Iterator[dict[str, str]]:
    """Yield the installed packages of dpkg's status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            yield {"type": "library", "name": name, "version": version, "purl": purl}


def wheels(requirements: str) -> Iterator[dict[str, str]]:
    """Yield the pinned packages of a requirements file."""
    for name, version in _PIN.findall(requirements):
        purl = f"pkg:pypi/{name}@{version}"
        yield {"type": "application", "name": name, "version": version, "purl": purl}


def document(archive: Path) -> Mapping[str, Any]:
    """Return the bill of materials of a root file system; raises KeyError if it has no dpkg."""
    with tarfile.open(archive) as tar:
        member = next((one for one in tar if one.name.removeprefix("./") == STATUS), None)
        file = tar.extractfile(member) if member is not None else None
        if file is None:
            raise KeyError(f"{archive} has no {STATUS}: it is no root file system of Debian")
        status = file.read().decode()
    components = [*debian_packages(status), *wheels(WHEELS.read_text(encoding="utf-8"))]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


if __name__ == "__main__":
    json.dump(document(Path(sys.argv[1])), sys.stdout, indent=1)
