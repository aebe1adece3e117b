"""Encode the parameters of a Bot API call: a form, which has several parts if it contains files."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

import aiohttp

from channels.telegram.text import replace_surrogates

_CONTENT_TYPE = "application/x-www-form-urlencoded"
_UNKNOWN_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that a call sends along; Telegram shows its name."""

    name: str
    content: bytes


def contains_files(parameters: Mapping[str, Any]) -> bool:
    """Return whether a call sends a file along."""
    return any(isinstance(value, Upload) for value in parameters.values())


def encode(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a call, and its headers, as aiohttp takes them; raises ValueError.

    Texts are sent as they are, other values as JSON. A value of None is left out.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    if not contains_files(given):
        fields = {name: _to_text(value) for name, value in given.items()}
        return {"data": urlencode(fields).encode(), "headers": {"Content-Type": _CONTENT_TYPE}}
    # Quoted fields would have their names percent-encoded, and Telegram shows the name as it is sent.
    form = aiohttp.FormData(quote_fields=False, default_to_multipart=True)
    for name, value in given.items():
        if isinstance(value, Upload):
            kind = mimetypes.guess_type(value.name, strict=False)[0] or _UNKNOWN_TYPE
            file_name = _escape(value.name or kind.replace("/", "."))
            form.add_field(name, BytesIO(value.content), filename=file_name, content_type=kind)
        else:
            form.add_field(name, _to_text(value))
    return {"data": form}


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _escape(file_name: str) -> str:
    """Return a file name without the signs that would end its header, escaped as browsers do."""
    plain = replace_surrogates(file_name).replace('"', "%22")
    return "".join(sign if sign >= " " and sign != "\x7f" else f"%{ord(sign):02X}" for sign in plain)
