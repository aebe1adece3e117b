"""Build the clients of configured models, with failover between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from yarl import URL

from gateway.agents.clients.failover import FailoverClient
from gateway.agents.clients.http import ModelAddress, ModelHttp
from gateway.agents.clients.port import ModelClient
from gateway.agents.model.vendors import LIBRARY_VENDORS, ParsedModel, Vendors, base_url_for, require
from gateway.agents.port import AgentSpec

if TYPE_CHECKING:
    from gateway.agents.clients.pydantic_ai_client import PydanticAiClient


class ModelClients:
    """Builds clients of models; holds the connections that they share."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._http = ModelHttp(vendors.bound_keys())
        self._library: PydanticAiClient | None = None

    async def aclose(self) -> None:
        """Close all connections; requests under way fail."""
        await self._http.aclose()
        if self._library is not None:
            await self._library.aclose()

    def build_chain(self, agent: AgentSpec) -> ModelClient:
        """Return the models of a spec as one client that tries them in order; raises UnusableModel.

        The last model (or the only one) is tried again as often as `vendors.retries` says, the others once.
        """
        last = len(agent.models) - 1
        clients = [
            self.build(agent, place, retries=self._vendors.retries if place == last else 0)
            for place in range(last + 1)
        ]
        return clients[0] if last == 0 else FailoverClient(clients)

    def build(self, agent: AgentSpec, index: int, *, retries: int) -> ModelClient:
        """Return the client of the model at an index of the spec's list; raises UnusableModel."""
        name = agent.models[index]
        base_url = base_url_for(name, agent.models, agent.base_url)
        model = require(name, self._vendors, base_url, "agent.fallback" if index else "agent.model")
        seconds = agent.limits.step_timeout
        if model.vendor in LIBRARY_VENDORS:
            return self._build_with_library(model, retries, seconds)
        if model.vendor == "anthropic":
            return self._build_anthropic(model, retries, seconds)
        return self._build_chat(model, base_url, retries, seconds)

    def _build_anthropic(self, model: ParsedModel, retries: int, seconds: float) -> ModelClient:
        from gateway.agents.clients import anthropic_messages  # each client is loaded for its own models

        vendors = self._vendors
        key = (vendors.anthropic_api_key or "").strip()
        address = ModelAddress(
            model=model.name,
            url=f"{vendors.anthropic_base_url.rstrip('/').removesuffix('/v1')}/v1/messages",
            headers={"anthropic-version": anthropic_messages.VERSION} | ({"x-api-key": key} if key else {}),
            error_of=anthropic_messages.http_error,
            retries=retries,
            seconds=seconds,
        )
        return anthropic_messages.AnthropicMessages(self._http, address)

    def _build_chat(
        self, model: ParsedModel, base_url: str | None, retries: int, seconds: float
    ) -> ModelClient:
        from gateway.agents.clients.openai_chat import OpenAIChat, http_error

        vendors = self._vendors
        if model.vendor == "ollama":
            address, key = with_api_path(base_url or vendors.ollama_base_url), ""
        else:
            address, key = base_url or vendors.openai_base_url, (vendors.openai_api_key or "").strip()
        address_of = ModelAddress(
            model=model.name,
            url=f"{address.rstrip('/')}/chat/completions",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            error_of=http_error,
            retries=retries,
            seconds=seconds,
        )
        return OpenAIChat(self._http, address_of, provider=model.vendor, is_strict=model.vendor == "openai")

    def _build_with_library(self, model: ParsedModel, retries: int, seconds: float) -> ModelClient:
        from gateway.agents.clients.pydantic_ai_client import PydanticAiClient, PydanticAiOptions

        vendors, options = self._vendors, PydanticAiOptions(retries=retries, seconds=seconds)
        if self._library is None:
            self._library = PydanticAiClient(vendors.bound_keys())
        return self._library.google(
            model.name, key=vendors.google_api_key, base_url=vendors.google_base_url, options=options
        )


def with_api_path(ollama: str) -> str:
    """Return the OpenAI-compatible URL of an Ollama server that is named by host and port only."""
    url = URL(ollama)
    return str(url.with_path("/v1")) if url.path in {"", "/"} else ollama
