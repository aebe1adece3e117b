"""Parsed configs of records: a turn reads the same config several times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from gateway.store.accounts.records import Record

Config = TypeVar("Config", bound=BaseModel)

MAX_CONFIGS = 1000


class ParsedConfigs(Generic[Config]):
    """The configs that were parsed last, as a frozen model. Secrets are no part of a config."""

    def __init__(self, model: type[Config]) -> None:
        self._model = model
        self._parsed: OrderedDict[str, tuple[Mapping[str, Any], Config]] = OrderedDict()

    def get(self, record: Record) -> Config:
        """Return a record's config; raises ValidationError."""
        stored, config = self._parsed.get(record.id, (None, None))
        if config is None or stored != record.config:
            config = self._model.model_validate(record.config)
            self._parsed[record.id] = (record.config, config)
            if len(self._parsed) > MAX_CONFIGS:
                self._parsed.popitem(last=False)
        return config
