"""Read a method's arguments from the query, a form, multipart or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.web_request import FileField

from channels.telegram.simulator.failure import bad_request


class Arguments:
    """The arguments of one call."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __contains__(self, name: str) -> bool:
        return self._given.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        return self._given.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        value = self._given.get(name)
        return default if value is None else str(value)

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return an integer; raises ApiFailure for anything else."""
        value = self._given.get(name)
        if value is None or value == "":
            return default
        try:
            return int(str(value))
        except ValueError:
            raise bad_request(f"parameter {name} is not a number") from None

    def json_value(self, name: str) -> Any:
        """Return an object or array, which a form carries as JSON; raises ApiFailure."""
        value = self._given.get(name)
        if not isinstance(value, str) or not value:
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise bad_request(f"can't parse {name} JSON object") from None

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        return self.text(name).lower() in {"true", "1", "yes"}

    def file(self, name: str) -> tuple[str, str, bytes] | None:
        """Return the name, type and bytes of an uploaded file."""
        value = self._given.get(name)
        if isinstance(value, str) and value.startswith("attach://"):
            value = self._given.get(value.removeprefix("attach://"))
        if not isinstance(value, FileField):
            return None
        return value.filename, value.content_type, value.file.read()

    @property
    def as_json(self) -> dict[str, Any]:
        """The arguments as JSON for tests."""
        return {
            name: value.filename if isinstance(value, FileField) else value
            for name, value in self._given.items()
        }


async def read_arguments(request: web.Request) -> Arguments:
    """Read the arguments of a call; raises ApiFailure for a malformed body."""
    given: dict[str, Any] = dict(request.query)
    if request.content_type == "application/json":
        try:
            body = await request.json()
        except ValueError:
            raise bad_request("can't parse request JSON object") from None
        given |= body if isinstance(body, dict) else {}
    elif request.can_read_body:
        given |= dict(await request.post())
    return Arguments(given)
