"""A whole gateway in the test's own process, so that a test can see its statements and publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.app import RunningGateway, open_gateway
from gateway.config.load import load
from migrated import migrated_data_directory


@asynccontextmanager
async def gateway_in_process(data: Path, env: Mapping[str, str]) -> AsyncIterator[RunningGateway]:
    """Run a gateway with a data directory and settings until the block ends."""
    if "DOVECOTE_DATABASE_URL" not in env:
        await migrated_data_directory(data)
    settings = load(
        {"data_dir": data, "port": 0, "allow_unsandboxed_host": True}, env=env, directory=data.parent
    )
    async with open_gateway(settings, asyncio.Event()) as running:
        yield running
