"""A gateway whose default agent asks a scripted model on loopback, and OpenAI's own client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, Script


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIGateway:
    """The running gateway, the client, and the model."""

    process: GatewayProcess
    client: AsyncOpenAI
    model: OpenAIServer


@asynccontextmanager
async def openai_gateway(
    data: Path, script: Script, *, max_retries: int = 5, timeout: float = 600
) -> AsyncIterator[OpenAIGateway]:
    """Run the model, the gateway on the data directory, and the client with its timeout in seconds."""
    async with OpenAIServer(script) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with (
            gateway(data, env=env) as process,
            AsyncOpenAI(
                base_url=f"{process.url}/v1", api_key=process.key, max_retries=max_retries, timeout=timeout
            ) as client,
        ):
            yield OpenAIGateway(process=process, client=client, model=model)
