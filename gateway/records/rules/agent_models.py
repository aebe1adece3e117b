"""Which models of the settings cannot be used as configured: those of `[agent]` and of `[agents.NAME]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from gateway.agents.custom.installed_agents import entry_problem
from gateway.agents.model import check_chain
from gateway.agents.registry import model_problems, model_vendors
from gateway.config.setting_types import DEFAULT_MODEL, ENTRY_PREFIX, SHELL, Role
from gateway.config.settings import Settings
from gateway.records.agent import AgentConfig, OperatorModel, models_of


def configured_model_problems(settings: Settings) -> tuple[str, ...]:
    """Return the problems of the models that the settings name, one line each with field and remedy.

    Calls no vendor and loads no SDK. Tables that are invalid in themselves are left to their own check.
    """
    return (*model_problems(settings), *declared_model_problems(settings))


def declared_model_problems(settings: Settings) -> tuple[str, ...]:
    """Return the problems of the models and addresses of `[agents.NAME]`, in a process that runs turns."""
    if Role.TURNS not in settings.roles:
        return ()
    found = (one for name, table in settings.agents.items() for one in _problems(settings, name, table))
    return tuple(dict.fromkeys(found))


def _problems(settings: Settings, name: str, table: Mapping[str, Any]) -> Iterator[str]:
    try:
        config = AgentConfig.model_validate(dict(table))
    except ValidationError:
        return
    if config.model == DEFAULT_MODEL and config.base_url is None and not config.fallback:
        return  # as [agent], which has a check of its own
    models, base_url = models_of(config, OperatorModel.from_settings(settings.agent))
    if models[0].startswith(ENTRY_PREFIX):
        problem = entry_problem(models[0], f"agents.{name}.model")
        yield from (problem,) if problem else ()
    elif models[0] != SHELL:
        chain = tuple(dict.fromkeys((*models, *(config.model_choices or ()))))
        vendors = model_vendors(settings.vendors, settings.agent)
        yield from check_chain(chain, vendors, base_url, table=f"agents.{name}")
