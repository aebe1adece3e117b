"""The shapes of files and usage in responses, for the OpenAPI document: they are stored as objects."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, WithJsonSchema

from gateway.web.http.route import MODEL_KEY, ResponseModel


class StoredFileResponse(ResponseModel):
    """A file with a signed link that is valid until `expires`; `path` is its path in the workspace."""

    id: str
    name: str
    size: int
    type: str
    sha256: str
    url: str
    expires: datetime
    path: str = ""
    caption: str = ""


class MessageFileResponse(ResponseModel):
    """A file of a message; it has an id and a link if the gateway stores it."""

    name: str
    size: int | None = None
    type: str | None = None
    id: str = ""
    sha256: str = ""
    url: str = ""
    expires: datetime | None = None
    path: str = ""
    caption: str = ""


class TurnUsageResponse(ResponseModel):
    """What a turn used of its model."""

    model: str
    requests: int
    input_tokens: int
    output_tokens: int


SHAPES: tuple[type[BaseModel], ...] = (StoredFileResponse, MessageFileResponse, TurnUsageResponse)

StoredFileShape = Annotated[dict[str, Any], WithJsonSchema({MODEL_KEY: "StoredFile"})]
MessageFileShape = Annotated[dict[str, Any], WithJsonSchema({MODEL_KEY: "MessageFile"})]
UsageShape = Annotated[dict[str, Any], WithJsonSchema({MODEL_KEY: "TurnUsage"})]
