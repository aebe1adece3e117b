"""Who performs for a persona: the built-in shell, or a language model opened when one is first needed."""

from __future__ import annotations

from contextlib import AsyncExitStack

from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import Agent, AgentError, Persona
from gateway.agents.shell import ShellAgent
from gateway.options import VendorSettings

SHELL = "builtin:shell"


def vendors_of(settings: VendorSettings, base_url: str | None) -> Vendors:
    """Return keys and endpoints as the operator configured them; the default agent's address is trusted."""
    given: dict[str, object] = {
        "openai_key": settings.openai and settings.openai.get_secret_value(),
        "anthropic_key": settings.anthropic and settings.anthropic.get_secret_value(),
        "google_key": settings.google and settings.google.get_secret_value(),
        "openai_base_url": settings.openai_base_url,
        "ollama_base_url": settings.ollama_url,
        "trusted_base_urls": (base_url,) if base_url else (),
    }
    return Vendors(**{name: value for name, value in given.items() if value})  # type: ignore[arg-type]


class Performers:
    """Finds agents; the stack closes what was opened."""

    def __init__(self, vendors: Vendors, stack: AsyncExitStack) -> None:
        self._vendors = vendors
        self._stack = stack
        self._shell = ShellAgent()
        self._model: Agent | None = None

    def find(self, persona: Persona) -> Agent:
        """Return who performs for this persona; raises AgentError when the model extra is not installed."""
        if persona.models[0] == SHELL:
            return self._shell
        if self._model is None:
            self._model = self._open()
        return self._model

    def _open(self) -> Agent:
        try:
            agent = open_model_agent(self._vendors)
        except ImportError as error:
            raise AgentError(
                f"language models need the `model` extra: pip install 'dovecote[model]' ({error})"
            ) from error
        self._stack.push_async_callback(agent.aclose)
        return agent
