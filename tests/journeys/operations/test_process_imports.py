"""What a process imports: libraries that it does not use cost memory and time at every start."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from migrated import migrated_data_directory

ROOT = Path(__file__).parents[3]

UNUSED = {
    "alembic": "the schema is current",
    "anthropic": "models are called by clients of our own",
    "channels.discord": "there is no such channel",
    "channels.slack": "there is no such channel",
    "cryptography.x509": "no sandbox has a restricted network",
    "gateway.agents.clients.anthropic_messages": "no model is Anthropic's",
    "gateway.agents.custom.runner": "no package with an agent is installed",
    "gateway.cli.app": "no other command runs",
    "gateway.web.routes": "there was no request but for health and metrics",
    "httpx": "no channel needs it",
    "httpx2": "models are called by clients of our own",
    "jwt": "no credential of a GitHub App is used",
    "mako": "a part of Alembic",
    "openai": "models are called by clients of our own",
    "psycopg": "the database is SQLite",
    "pydantic_ai": "no model needs it",
    "pygments.lexer": "a part of rich",
    "rich.console": "the log is plain",
    "sandbox.docker": "no agent uses it",
    "sandbox.kubernetes": "no agent uses it",
    "sandbox.s3": "workspaces and snapshots are stored in directories",
    "sqlalchemy.orm": "statements are written with Core",
    "sqlalchemy.dialects.postgresql": "the database is SQLite",
    "telegram": "there is no such channel",
}

MOST_MODULES = 1440
"""A start imports about 1,420 modules, 660 of them our own. Each hundred takes 2 MB and 30 ms of CPU."""


async def test_a_gateway_on_a_current_schema_imports_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """With a model of a compatible server, SQLite and no channel, the listed libraries are not loaded."""
    await migrated_data_directory(tmp_path / "data")
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
        "DOVECOTE_AGENT__MODEL": "openai:loopback",
        "DOVECOTE_AGENT__BASE_URL": "http://127.0.0.1:9/v1",
    }
    command = ("-X", "importtime", "-m", "gateway", "serve", "--data", str(tmp_path / "data"), "--port", "0")
    with (tmp_path / "imports").open("wb") as imports:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env=environment,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=imports,
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            begun = await process.stdout.readline()
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.communicate()
    log = (tmp_path / "imports").read_text()
    assert begun.startswith(b"console:"), log
    imported = {line.rpartition("|")[2].strip() for line in log.splitlines() if "import time:" in line}
    assert "gateway.app" in imported
    assert sorted(set(UNUSED) & imported) == []
    assert len(imported) <= MOST_MODULES


TURN = """
import asyncio, sys
from agent_tools import RecordingTools, agent_spec, collect_steps, turn_input
from gateway.agents.model import Vendors, check, open_model_agent
from openai_server import OpenAIServer, echo

async def main():
    check("openai:x", Vendors())
    async with OpenAIServer(echo) as server:
        async with open_model_agent(Vendors(trusted_base_urls=(server.base_url,))) as agent:
            spec = agent_spec(server.base_url)
            await agent.preload(spec.models)
            steps = await collect_steps(agent, turn_input(spec, "run: ls"), RecordingTools())
    assert steps[-1].output

asyncio.run(main())
print(sorted({"pydantic_ai", "openai", "anthropic", "google", "httpx", "httpx2"} & set(sys.modules)))
"""


def test_a_turn_of_a_compatible_server_imports_no_model_library() -> None:
    """Neither pydantic-ai nor a vendor's SDK is loaded by checking a model, opening the agent or its turn."""
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", TURN], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr


SESSION = """
import sys
from delivery.database.async_engine import AsyncEngine
import sqlalchemy.ext.asyncio
assert "sqlalchemy.orm" not in sys.modules
assert not hasattr(sqlalchemy.ext.asyncio, "__wrapped__")
assert "sqlalchemy.orm" not in sys.modules
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
assert issubclass(AsyncSession, object) and "sqlalchemy.orm" in sys.modules
assert sqlalchemy.ext.asyncio.AsyncEngine is AsyncEngine
assert not hasattr(sqlalchemy.ext.asyncio, "no_such_name")
"""


def test_sessions_of_sqlalchemy_can_be_imported_after_the_engine() -> None:
    """The package completes itself when it is asked for a name that the engine does not need."""
    subprocess.run([sys.executable, "-c", SESSION], cwd=ROOT, check=True)
