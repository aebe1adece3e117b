"""The OpenAPI documents of an agent record: `config.tools.openapi.NAME`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictStr, model_validator

from egress.typed_model import TypedModel
from egress.urls import EndpointUrl
from gateway.records.tools.background import CallTimeout, IsAsync, check_timeout
from gateway.records.tools.mcp_servers import DEFAULT_TIMEOUT, HeaderName, HeaderSecret
from gateway.records.tools.openapi_document import MAX_DOCUMENT_CHARS, Operation, parse_document

MAX_DOCUMENTS = 10
MAX_OPERATIONS = 100
"""Operations of one document that are offered."""


class OpenApiToolsConfig(TypedModel):
    """The operations of an OpenAPI document as tools.

    `document` is the document as JSON text. `url` is the server, else the first of the document.
    `operations` are the offered ones by id, or with `*` at the end; null offers all. `prefix` begins the
    names under which the model sees them; null is the document's name and `_`. With `async` each call is a
    background job.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    document: Annotated[StrictStr, Field(min_length=2, max_length=MAX_DOCUMENT_CHARS, repr=False)]
    url: EndpointUrl | None = None
    operations: tuple[Annotated[StrictStr, Field(min_length=1, max_length=200)], ...] | None = Field(
        default=None, max_length=MAX_OPERATIONS
    )
    prefix: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]*$", max_length=40)] | None = None
    headers: dict[HeaderName, HeaderSecret] = Field(default_factory=dict, max_length=20)
    approval: Literal["default", "always", "never"] = "default"
    timeout: CallTimeout = DEFAULT_TIMEOUT
    is_async: IsAsync = False

    @model_validator(mode="after")
    def _usable(self) -> OpenApiToolsConfig:
        names = self.operation_names()
        if not names:
            raise ValueError("operations: the document has none of them")
        if len(names) > MAX_OPERATIONS:
            raise ValueError(f"operations: {len(names)} are too many, choose {MAX_OPERATIONS} at most")
        check_timeout(self.timeout, may_be_job=self.is_async, options="async")
        if not self.server:
            raise ValueError("url: give it, because the document names no absolute server")
        for name in names:
            self.operation(name)
        return self

    @property
    def server(self) -> str:
        """The URL before each path, or "" if it is unknown; raises ValueError for a wrong one."""
        if self.url is not None:
            return self.url
        named = parse_document(self.document).server
        return EndpointUrl.parse(named) if named else ""

    def operation_names(self) -> list[str]:
        """Return the ids of the operations that the filter offers."""
        return [name for name in parse_document(self.document).names if self._offers(name)]

    def operation(self, name: str) -> Operation:
        """Return an offered operation; raises UnsupportedDocument."""
        return parse_document(self.document).operation(name)

    def _offers(self, name: str) -> bool:
        return self.operations is None or any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for pattern in self.operations
        )
