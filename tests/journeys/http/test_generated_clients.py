"""Clients that others' programs generate from the gateway's OpenAPI document compile and run.

OPENAPI_PYTHON_CLIENT names the program `openapi-python-client`, and OPENAPI_TYPESCRIPT_MODULES a node_modules
folder with `openapi-typescript` and `typescript`. Without them the stories are skipped.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import aiohttp
import pytest

from gateway_process import GatewayProcess, gateway

PYTHON_CLIENT = os.environ.get("OPENAPI_PYTHON_CLIENT", "")
TYPESCRIPT_MODULES = os.environ.get("OPENAPI_TYPESCRIPT_MODULES", "")
STORIES = Path(__file__).parents[2] / "support" / "generated"


async def _run(*command: object, directory: Path) -> str:
    """Run a program that must succeed; return what it printed."""
    child = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )
    async with asyncio.timeout(300):
        said, _none = await child.communicate()
    assert child.returncode == 0, said.decode()
    return said.decode()


async def _save_document(process: GatewayProcess, directory: Path) -> Path:
    async with aiohttp.ClientSession() as session, session.get(f"{process.url}/openapi.json") as answer:
        saved = directory / "openapi.json"
        saved.write_bytes(await answer.read())
    return saved


@pytest.mark.skipif(not PYTHON_CLIENT, reason="wants OPENAPI_PYTHON_CLIENT")
async def test_a_generated_python_client_makes_an_agent_and_a_turn(tmp_path: Path) -> None:
    """Its models have the fields of configs; the package compiles as a whole."""
    python = Path(PYTHON_CLIENT).with_name("python")
    async with gateway(tmp_path / "data") as process:
        document = await _save_document(process, tmp_path)
        package = tmp_path / "dovecote_api"
        generate = ("generate", "--path", document, "--meta", "none", "--output-path", package)
        await _run(PYTHON_CLIENT, *generate, directory=tmp_path)
        await _run(python, "-m", "compileall", "-q", package, directory=tmp_path)
        shutil.copy(STORIES / "story.py.txt", tmp_path / "story.py")
        said = await _run(python, "story.py", process.url, process.key, directory=tmp_path)
    assert "the story is over" in said


@pytest.mark.skipif(not TYPESCRIPT_MODULES, reason="wants OPENAPI_TYPESCRIPT_MODULES")
async def test_generated_typescript_types_fit_a_turn(tmp_path: Path) -> None:
    """A strict compiler accepts the types, and a program that uses them."""
    options = ("--default-non-nullable", "false", "-o", "api.d.ts")
    programs = Path(TYPESCRIPT_MODULES) / ".bin"
    async with gateway(tmp_path / "data") as process:
        document = await _save_document(process, tmp_path)
        await _run(programs / "openapi-typescript", document, *options, directory=tmp_path)
        shutil.copy(STORIES / "story.ts", tmp_path)
        compile_it = ("--strict", "--target", "es2022", "--module", "commonjs", "story.ts")
        await _run(programs / "tsc", *compile_it, directory=tmp_path)
        said = await _run("node", "story.js", process.url, process.key, directory=tmp_path)
    assert "the story is over" in said
