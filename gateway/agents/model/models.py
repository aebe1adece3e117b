"""Build pydantic-ai models from the configuration, with failover between them."""

from __future__ import annotations

from importlib import import_module

import pydantic_ai
from httpx2 import URL, AsyncClient, ConnectError, Request
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.models import Model, create_async_httpx2_client
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.settings import ModelSettings

from egress.urls import origin_of
from gateway.agents.model.vendors import ParsedModel, Vendors, base_url_for, require
from gateway.agents.port import AgentSpec

pydantic_ai.BANNER_ENABLED = False

TRANSIENT_ERRORS = (
    ModelConnectionError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
"""Errors after which another model, or the same one later, may answer."""

FIRST_SERVER_ERROR = 500


def open_http_client(vendors: Vendors) -> AsyncClient:
    """Return the connections that all models share; a key goes nowhere but to its vendor's origins."""
    client = create_async_httpx2_client()
    bound = vendors.bound_keys()

    async def refuse_foreign_keys(request: Request) -> None:
        origin = origin_of(str(request.url))
        for key, origins in bound.items():
            if origin not in origins and any(key in value for value in request.headers.values()):
                raise ConnectError(f"{origin} is not an address to which this key may be sent")

    client.event_hooks["request"].append(refuse_foreign_keys)
    return client


def load_vendor(vendor: str) -> None:
    """Import what a vendor's models need; does nothing for unknown vendors."""
    module = {"openai": "openai", "ollama": "openai", "anthropic": "anthropic", "google": "google"}.get(
        vendor
    )
    import_module("gateway.agents.model.run")
    if module is not None:
        import_module(f"pydantic_ai.models.{module}")
        import_module(f"pydantic_ai.providers.{vendor}")


def is_transient(error: Exception) -> bool:
    """Return whether a failed model call may be retried: no connection, time-out, 429 or 5xx."""
    if isinstance(error, TRANSIENT_ERRORS):
        return True
    if isinstance(error, ModelHTTPError):
        return error.status_code >= FIRST_SERVER_ERROR
    return type(error) is ModelAPIError


def build_chain(agent: AgentSpec, vendors: Vendors, http: AsyncClient) -> Model:
    """Return the models of a spec as one model that tries them in order; raises UnusableModel.

    The next model is tried only until the current one starts to answer. After its first event a failure
    ends the attempt, because text that was streamed cannot be withdrawn.
    """
    last = len(agent.models) - 1
    chain = [
        build_model(agent, place, vendors, http, retries=vendors.retries if place == last else 0)
        for place in range(last + 1)
    ]
    return chain[0] if last == 0 else FallbackModel(chain[0], *chain[1:], fallback_on=is_transient)


def build_model(agent: AgentSpec, index: int, vendors: Vendors, http: AsyncClient, *, retries: int) -> Model:
    """Return the model at an index of the spec's list; raises UnusableModel."""
    name = agent.models[index]
    base_url = base_url_for(name, agent.models, agent.base_url)
    parsed = require(name, vendors, base_url, "agent.fallback" if index else "agent.model")
    settings = ModelSettings(max_retries=retries)
    timeout = agent.limits.step_timeout
    if timeout > 0:
        settings["request_timeout"] = timeout
    return _BUILDERS[parsed.vendor](parsed, vendors, base_url, http, settings)


def _openai(
    model: ParsedModel, vendors: Vendors, base_url: str | None, http: AsyncClient, settings: ModelSettings
) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    key = vendors.openai_api_key or "none"
    provider = OpenAIProvider(base_url=base_url or vendors.openai_base_url, api_key=key, http_client=http)
    return OpenAIChatModel(model.name, provider=provider, settings=settings)


def _ollama(
    model: ParsedModel, vendors: Vendors, base_url: str | None, http: AsyncClient, settings: ModelSettings
) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.ollama import OllamaProvider

    address = with_api_path(base_url or vendors.ollama_base_url)
    provider = OllamaProvider(base_url=address, api_key="none", http_client=http)
    return OpenAIChatModel(model.name, provider=provider, settings=settings)


def _anthropic(
    model: ParsedModel, vendors: Vendors, _base_url: str | None, http: AsyncClient, settings: ModelSettings
) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    address, key = vendors.anthropic_base_url, vendors.anthropic_api_key
    provider = AnthropicProvider(api_key=key, base_url=address, http_client=http)
    return AnthropicModel(model.name, provider=provider, settings=settings)


def _google(
    model: ParsedModel, vendors: Vendors, _base_url: str | None, http: AsyncClient, settings: ModelSettings
) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    address, key = vendors.google_base_url, vendors.google_api_key
    provider = GoogleProvider(api_key=key, base_url=address, http_client=http)
    return GoogleModel(model.name, provider=provider, settings=settings)


def with_api_path(ollama: str) -> str:
    """Return the OpenAI-compatible URL of an Ollama server that is named by host and port only."""
    url = URL(ollama)
    return str(url.copy_with(path="/v1")) if url.path in {"", "/"} else ollama


_BUILDERS = {"openai": _openai, "ollama": _ollama, "anthropic": _anthropic, "google": _google}
