"""Select the agent of a turn: the built-in shell, an installed agent, or a language model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from gateway.agents.custom.installed_agents import entry_problem, load_agents
from gateway.agents.history import decode_progress
from gateway.agents.model import Vendors, check_chain, open_model_agent
from gateway.agents.port import Agent, AgentError, AgentSpec, TurnInput
from gateway.agents.shell import ShellAgent
from gateway.config.setting_types import ENTRY_PREFIX, SHELL, AgentSettings, Role, VendorSettings

if TYPE_CHECKING:
    from gateway.agents.model.agent import ModelAgent
    from gateway.config.settings import Settings

log = structlog.get_logger(__name__)

LANGUAGE_MODEL = "a language model"


def model_vendors(settings: VendorSettings, agent: AgentSettings) -> Vendors:
    """Return keys and endpoints as the operator configured them.

    The default agent's address is trusted with the key of the vendor whose models it serves.
    """
    uses_openai = any(model.startswith("openai:") for model in (agent.model, *agent.fallback))
    given: dict[str, object] = {
        "openai_api_key": settings.openai_api_key and settings.openai_api_key.get_secret_value(),
        "anthropic_api_key": settings.anthropic_api_key and settings.anthropic_api_key.get_secret_value(),
        "google_api_key": settings.google_api_key and settings.google_api_key.get_secret_value(),
        "openai_base_url": settings.openai_base_url,
        "anthropic_base_url": settings.anthropic_base_url,
        "google_base_url": settings.google_base_url,
        "ollama_base_url": settings.ollama_url,
        "trusted_base_urls": (agent.base_url,) if agent.base_url else (),
        "trusted_vendor": "openai" if uses_openai else "ollama",
    }
    return Vendors(**{name: value for name, value in given.items() if value})  # type: ignore[arg-type]


def default_models(settings: Settings) -> tuple[str, ...]:
    """Return the language models of the default agent, the first choice first."""
    agent = settings.agent
    asks = agent.model != SHELL and Role.TURNS in settings.roles
    return (agent.model, *agent.fallback) if asks else ()


def model_problems(settings: Settings) -> tuple[str, ...]:
    """Return the problems of the default agent's models, one line each; calls no vendor and loads no SDK."""
    models = default_models(settings)
    if models and models[0].startswith(ENTRY_PREFIX):
        problem = entry_problem(models[0])
        return (problem,) if problem else ()
    vendors = model_vendors(settings.vendors, settings.agent)
    models = (*default_models(settings), *settings.agent.model_choices)
    return check_chain(models, vendors, settings.agent.base_url)


async def open_agents(settings: Settings) -> AgentRegistry:
    """Return the agents of this process; raises BrokenAgent for an installed one that cannot be used.

    Packages are loaded in a thread: their imports may take seconds.
    """
    installed = await asyncio.to_thread(load_agents) if Role.TURNS in settings.roles else {}
    agents = AgentRegistry(model_vendors(settings.vendors, settings.agent), installed)
    await agents.preload(default_models(settings))
    return agents


def check_continues(turn_input: TurnInput) -> None:
    """Raise AgentError if another kind of agent paused this turn for calls, which this one would not make."""
    model = turn_input.agent.models[0]
    own = model if model == SHELL or model.startswith(ENTRY_PREFIX) else LANGUAGE_MODEL
    before = _maker(turn_input.checkpoint)
    if turn_input.decisions and before != own:
        raise AgentError(
            f"The agent was changed from {before} to {own} while this turn waited for a person, so what it "
            "waited for was not executed. Send the message again."
        )


def _maker(saved: bytes | None) -> str:
    """Return which kind of agent saved a turn's progress; the shell saves none."""
    progress = decode_progress(saved)
    if progress is None:
        return SHELL
    custom = progress.state.get("custom")
    return LANGUAGE_MODEL if custom is None else f"{ENTRY_PREFIX}{custom}"


class AgentRegistry:
    """The agents of this process: the shell, the installed ones, and one model agent, opened when needed.

    Close the registry after the turn worker has stopped: its turns use the model agent's connections.
    """

    def __init__(self, vendors: Vendors, installed: Mapping[str, Agent] | None = None) -> None:
        self._vendors = vendors
        self._installed = installed or {}
        self._shell = ShellAgent()
        self._model: ModelAgent | None = None

    def get(self, spec: AgentSpec) -> Agent:
        """Return the agent for a spec; a model's configuration errors are raised when it runs.

        Raises AgentError for an installed agent that this process does not have.
        """
        model = spec.models[0]
        if model.startswith(ENTRY_PREFIX):
            found = self._installed.get(model.removeprefix(ENTRY_PREFIX))
            if found is None:
                raise AgentError(entry_problem(model) or f"{model} was installed after the gateway started")
            return found
        return self._shell if model == SHELL else self._open_model()

    async def preload(self, models: Sequence[str]) -> None:
        """Load the library that the models need, if any, so that the first turn does not wait for it."""
        if not models:
            return
        began = time.monotonic()
        try:
            await self._open_model().preload(models)
        except Exception:  # the first turn reports the problem
            log.exception("models.load_failed", models=list(models))
            return
        log.info("models.loaded", models=list(models), seconds=round(time.monotonic() - began, 1))

    def _open_model(self) -> ModelAgent:
        if self._model is None:
            self._model = open_model_agent(self._vendors)
        return self._model

    async def aclose(self) -> None:
        """Close the model agent's connections, if they were opened; no turn may be running."""
        if self._model is not None:
            await self._model.aclose()
