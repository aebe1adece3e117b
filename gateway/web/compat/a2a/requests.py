"""Requests and responses of A2A's clients, in the shapes of versions 1.0 and 0.3 alike."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt, StrictStr

from gateway.conversations.submissions.queue_policy import MAX_INPUT
from gateway.records.fields import Name
from gateway.web.compat.openai_messages import InlineOrUrl, LenientRequest, Text
from gateway.web.http import attachments
from gateway.web.http.attachments import AttachmentCreate
from gateway.web.http.problems import invalid_field
from gateway.web.http.route import RequestModel

Label = Annotated[StrictStr, Field(max_length=200)]
Link = Annotated[StrictStr, Field(max_length=attachments.MAX_URL_LENGTH)]
TaskId = Annotated[StrictStr, Field(min_length=1, max_length=200)]
HistoryLength = Annotated[StrictInt, Field(ge=0, le=2**31)]


class A2aRequest(BaseModel):
    """A JSON-RPC request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    jsonrpc: Literal["2.0"]
    id: StrictStr | StrictInt | None = None
    method: Annotated[StrictStr, Field(max_length=200)]
    params: dict[str, Any] = Field(default_factory=dict)


class A2aResponse(BaseModel):
    """A JSON-RPC response: a result of the method's shape, or an error."""

    jsonrpc: Literal["2.0"]
    id: StrictStr | StrictInt | None
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None


class A2aQuery(RequestModel):
    """The agent that gets messages of new contexts; by default `default`."""

    agent: Name | None = None


class A2aFile(LenientRequest):
    """A file of version 0.3."""

    bytes: InlineOrUrl | None = None
    uri: Link | None = None
    name: Label = ""
    mimeType: Label = ""


class A2aPart(LenientRequest):
    """A part of a message: a text, a file as base64 or as a link, or data."""

    text: Text | None = None
    raw: InlineOrUrl | None = None
    url: Link | None = None
    data: JsonValue = None
    file: A2aFile | None = None
    filename: Label = ""
    mediaType: Label = ""

    def to_text(self) -> str:
        """Return the text of the part, or its data as JSON."""
        if self.text is not None:
            return self.text
        return "" if self.data is None else json.dumps(self.data, ensure_ascii=False)

    def to_file(self, number: int) -> AttachmentCreate | None:
        """Return the file of the part."""
        file = self.file or A2aFile(bytes=self.raw, uri=self.url, name=self.filename, mimeType=self.mediaType)
        name, kind = file.name or f"file-{number}", file.mimeType[:100]
        if file.bytes is not None:
            return AttachmentCreate(name=name, type=kind, content=file.bytes)
        return AttachmentCreate(name=name, type=kind, url=file.uri) if file.uri is not None else None


class A2aMessage(LenientRequest):
    """A message to an agent."""

    messageId: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    contextId: Name | None = None
    taskId: TaskId | None = None
    role: Literal["user", "ROLE_USER"]
    parts: Annotated[tuple[A2aPart, ...], Field(min_length=1, max_length=100)]

    @property
    def text(self) -> str:
        """The texts and data of the message; raises HttpProblem for too much."""
        text = "\n".join(part.to_text() for part in self.parts).strip("\n")
        if len(text) > MAX_INPUT:
            raise invalid_field("/params/message/parts", f"at most {MAX_INPUT} characters in all parts")
        return text

    @property
    def files(self) -> list[AttachmentCreate]:
        """The files of the message."""
        given = [part.to_file(number) for number, part in enumerate(self.parts, 1)]
        files = [file for file in given if file is not None]
        if len(files) > attachments.MAX_ATTACHMENTS:
            detail = f"at most {attachments.MAX_ATTACHMENTS} files in a message"
            raise invalid_field("/params/message/parts", detail)
        return files


class SendConfiguration(LenientRequest):
    """What the client wants returned, and when."""

    blocking: StrictBool | None = None
    returnImmediately: StrictBool = False
    historyLength: HistoryLength | None = None


class SendParams(LenientRequest):
    """The parameters of a message; `tenant` names the agent."""

    message: A2aMessage
    configuration: SendConfiguration = SendConfiguration()
    tenant: Name | None = None

    @property
    def waits(self) -> bool:
        """Whether the client waits for the end of the task."""
        return self.configuration.blocking is not False and not self.configuration.returnImmediately


class ListParams(LenientRequest):
    """The parameters of a list of tasks; `lastUpdatedAfter` is in milliseconds since 1970."""

    contextId: Name | None = None
    status: Annotated[StrictStr, Field(max_length=60)] | None = None
    pageSize: Annotated[StrictInt, Field(ge=1, le=100)] = 50
    pageToken: Annotated[StrictStr, Field(max_length=200)] = ""
    historyLength: HistoryLength | None = None
    statusTimestampAfter: AwareDatetime | None = None
    lastUpdatedAfter: Annotated[StrictInt, Field(ge=0, le=10**13)] | None = None
    includeArtifacts: StrictBool = False

    @property
    def updated_since(self) -> datetime | None:
        """The time of the oldest change that the client wants."""
        if self.statusTimestampAfter is not None or self.lastUpdatedAfter is None:
            return self.statusTimestampAfter
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.lastUpdatedAfter)


class TaskParams(LenientRequest):
    """The parameters of a request about one task."""

    id: TaskId
    historyLength: HistoryLength | None = None
