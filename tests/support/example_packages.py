"""The packages in `examples/`, installed for a test as pip would leave them, without an index."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT_EXAMPLES = ("channel-example", "provider-example")
AGENT_EXAMPLES = ("agent-function", "agent-pydantic-ai", "agent-langgraph")
EXAMPLES = (*CONTRACT_EXAMPLES, "tool-example", *AGENT_EXAMPLES)


def install(example: str, site: Path) -> Path:
    """Install an example into the directory `site`, and return the example's folder."""
    folder = ROOT / "examples" / example
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    add_distribution(site, project["name"], project["entry-points"])
    (site / f"{project['name']}.pth").write_text(f"{folder}\n")
    return folder


@contextmanager
def agent_entry(example: str) -> Iterator[EntryPoint]:
    """Yield the entry point of an example's agent; its module is loaded again."""
    folder = ROOT / "examples" / example
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["dovecote.agents"].items()
    sys.path.insert(0, str(folder))
    try:
        yield EntryPoint(name=name, value=value, group="dovecote.agents")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(value.partition(":")[0], None)


def add_distribution(site: Path, name: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed distribution into the directory `site`."""
    about = site / f"{name.replace('-', '_')}-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in entry_points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


def environment(*paths: Path) -> dict[str, str]:
    """Return the environment of a Python process that finds this repository and `paths`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
