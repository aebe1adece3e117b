"""Unmodified clients of others talk to the gateway, with a kill -9 in the middle where they can resume.

CLIENT_PYTHON names a Python with the packages of `clients/requirements.txt`, and CLIENT_MODULES a
node_modules folder with those of `clients/package.json`. Without them the programs are skipped; `.ci/clients`
sets both.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_programs import PATIENCE, clients_gateway, prepare, run_program

pytestmark = pytest.mark.timeout(PATIENCE + 60)

PYTHON = os.environ.get("CLIENT_PYTHON", "")
MODULES = os.environ.get("CLIENT_MODULES", "")
ANSWERS, ALL = {"answer", "stream", "tools"}, {"answer", "stream", "tools", "kill"}


@pytest.mark.skipif(not PYTHON, reason="wants CLIENT_PYTHON")
@pytest.mark.parametrize("name", ["openai_python", "langchain_openai", "litellm", "pydantic_ai"])
async def test_a_python_client(tmp_path: Path, name: str) -> None:
    """It gets answers and streams, executes its own tools, and has its answer after a kill."""
    prepare(tmp_path, "")
    async with clients_gateway(tmp_path / "data") as gateway:
        report = await run_program(gateway, PYTHON, tmp_path / f"{name}.py")
    assert (report.code, report.features) == (0, ALL), "\n".join(report.lines)
    assert report.was_interrupted


@pytest.mark.skipif(not MODULES, reason="wants CLIENT_MODULES")
@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("openai_javascript", ALL),
        ("ai_sdk", ALL),
        ("agui_client", ALL),
        ("mcp_typescript", {"answer", "tools", "kill"}),
        ("mcp_inspector", {"answer", "tools", "kill"}),
        ("open_webui", {"answer", "stream", "title", "kill"}),
        ("codex", {"answer", "tools", "kill"}),
        ("opencode", {"answer", "tools"}),
        ("qwen_code", {"answer", "tools"}),
    ],
)
async def test_a_javascript_client(tmp_path: Path, name: str, features: set[str]) -> None:
    """It does what its row of the table in `docs/reference/clients.md` says."""
    prepare(tmp_path, MODULES)
    async with clients_gateway(tmp_path / "data") as gateway:
        report = await run_program(gateway, f"{MODULES}/node/bin/node", tmp_path / f"{name}.mjs")
    assert (report.code, report.features) == (0, features), "\n".join(report.lines)
    assert report.was_interrupted or "kill" not in features
