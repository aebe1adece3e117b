"""Build the documentation site, without a network: stage the pages, then run MkDocs in strict mode.

    python3 -m uv pip install --python .venv -c constraints.txt --group docs
    .venv/bin/python -m scripts.site dist/site

Pages keep the paths that they have in the repository, so one set of links works on both.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from scripts.doc_links import ROOT, links, pages

STAGE = ROOT / "build" / "site-source"


def stage(folder: Path = STAGE) -> None:
    """Copy the pages, their pictures, and the files that they link to."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        _copy(page, folder)
        for link in links(page):
            if link.file.is_file():
                _copy(link.file, folder)


def _copy(file: Path, folder: Path) -> None:
    target = folder / file.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def main() -> int:
    """Run from the command line."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist/site").absolute()
    stage()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(target)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
