"""Read the operations of an OpenAPI 3 document that can be tools. All of it is foreign text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from gateway.records.tools.mcp_servers import RESERVED_HEADERS

MAX_DOCUMENT_CHARS = 500_000
MAX_SCHEMA_BYTES = 32 * 1024
"""Bytes of the arguments' schema of one operation."""
MAX_DEPTH = 20
"""References that a schema follows, one inside another."""
MAX_DESCRIPTION = 2000
_MAX_NODES = 5000
_JSON = "application/json"
_METHODS = ("get", "put", "post", "delete", "patch")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_PATH = re.compile(r"/(?:(?![?#\\\\])[!-~])*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]+")
_SCALARS = frozenset({"string", "integer", "number", "boolean"})
_NOT_FOR_MODELS = frozenset({"example", "examples", "xml", "externalDocs", "discriminator"})
_IGNORED_HEADERS = frozenset({"accept", "authorization", "content-type"})
"""Parameters in headers that OpenAPI ignores."""

Place = Literal["path", "query", "header"]


class UnsupportedDocument(ValueError):
    """The document, or an operation of it, cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter: `argument` is what the model calls it."""

    argument: str
    name: str
    place: Place
    schema: Mapping[str, Any]
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request of a document. `body` is the schema of its JSON body; None: it has none."""

    name: str
    method: str
    path: str
    description: str
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, Any] | None = None
    body_required: bool = False

    def arguments_schema(self) -> dict[str, Any]:
        """Return the schema of the arguments."""
        properties = {one.argument: dict(one.schema) for one in self.parameters}
        required = [one.argument for one in self.parameters if one.required]
        if self.body is not None:
            properties["body"] = dict(self.body)
            required += ["body"] if self.body_required else []
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        return schema | ({"required": required} if required else {})


@dataclass(frozen=True, slots=True)
class _Entry:
    """An operation as it stands in the document."""

    method: str
    path: str
    item: Mapping[str, Any]
    content: Mapping[str, Any]


class OpenApiDocument:
    """A parsed document: the URL of its server, and its operations, each read when it is first wanted."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.server = _server(raw)
        self._raw = raw
        self._entries: dict[str, _Entry] = {}
        self._read: dict[str, Operation] = {}
        for name, entry in _list_entries(raw):
            if name in self._entries:
                raise UnsupportedDocument(f"two operations have the id {name!r}")
            self._entries[name] = entry
        if not self._entries:
            raise UnsupportedDocument("the document has no operation of GET, POST, PUT, PATCH or DELETE")

    @property
    def names(self) -> Sequence[str]:
        """The names of all operations."""
        return list(self._entries)

    def operation(self, name: str) -> Operation:
        """Return one of the operations; raises UnsupportedDocument."""
        if name not in self._read:
            try:
                self._read[name] = _Reader(self._raw).operation(name, self._entries[name])
            except UnsupportedDocument as error:
                raise UnsupportedDocument(f"the operation {name!r}: {error}") from error
        return self._read[name]


@lru_cache(maxsize=64)
def parse_document(text: str) -> OpenApiDocument:
    """Return the document in a JSON text; raises UnsupportedDocument."""
    if len(text) > MAX_DOCUMENT_CHARS:
        raise UnsupportedDocument(f"must have at most {MAX_DOCUMENT_CHARS} characters, not {len(text)}")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsupportedDocument(f"must be an OpenAPI document as JSON text: {error}") from error
    version = raw.get("openapi") if isinstance(raw, dict) else None
    if not isinstance(version, str) or not version.startswith(("3.0", "3.1")):
        raise UnsupportedDocument(f"must be an OpenAPI document of version 3.0 or 3.1, not {version!r}")
    return OpenApiDocument(raw)


def _list_entries(raw: Mapping[str, Any]) -> Iterator[tuple[str, _Entry]]:
    for path, item in _object(raw.get("paths")).items():
        for method in _METHODS:
            content = _object(item).get(method)
            if isinstance(content, dict):
                named = content.get("operationId")
                fallback = re.sub(r"[^A-Za-z0-9]+", "_", f"{method}{path}").strip("_")
                name = named if isinstance(named, str) and named else fallback
                yield name, _Entry(method, path, item, content)


def _server(raw: Mapping[str, Any]) -> str | None:
    servers = raw.get("servers")
    first = _object(servers[0]) if isinstance(servers, list) and servers else {}
    url = first.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or "{" in url:
        return None
    return url


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


class _Reader:
    """Reads one operation: references are replaced by what they name, within limits."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self._nodes = 0

    def operation(self, name: str, entry: _Entry) -> Operation:
        """Return the operation; raises UnsupportedDocument."""
        raw = entry.content
        self._check_security(raw)
        body, body_required = self._body(raw)
        read = Operation(
            name=name,
            method=entry.method.upper(),
            path=entry.path,
            description=self._description(name, raw),
            parameters=list(self._parameters(entry)),
            body=body,
            body_required=body_required,
        )
        if len(json.dumps(read.arguments_schema())) > MAX_SCHEMA_BYTES:
            raise UnsupportedDocument(f"its arguments need a schema of more than {MAX_SCHEMA_BYTES} bytes")
        return read

    def _description(self, name: str, raw: Mapping[str, Any]) -> str:
        texts = [raw[key] for key in ("summary", "description") if isinstance(raw.get(key), str)]
        return "\n".join(dict.fromkeys(texts))[:MAX_DESCRIPTION] or name

    def _check_security(self, raw: Mapping[str, Any]) -> None:
        """Refuse keys that would stand in the query or in a cookie, if there is no other way."""
        wanted = raw.get("security", self._raw.get("security"))
        if not isinstance(wanted, list) or not wanted:
            return
        schemes = _object(_object(self._raw.get("components")).get("securitySchemes"))
        ways = [[_object(schemes.get(name)).get("in") for name in _object(one)] for one in wanted]
        if not any({"query", "cookie"}.isdisjoint(map(str, places)) for places in ways):
            raise UnsupportedDocument("its key belongs into the query or a cookie, use a header")

    def _parameters(self, entry: _Entry) -> Iterator[Parameter]:
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for listed in (entry.item.get("parameters"), entry.content.get("parameters")):
            for one in listed if isinstance(listed, list) else ():
                parameter = self._resolve(_object(one))
                found[str(parameter.get("in")), str(parameter.get("name"))] = parameter
        in_path = {name for place, name in found if place == "path"}
        if not _PATH.fullmatch(entry.path):
            raise UnsupportedDocument(f"the path {entry.path!r} must begin with / and have no query")
        missing = sorted(set(_PLACEHOLDER.findall(entry.path)) - in_path)
        if missing:
            raise UnsupportedDocument(f"the path names {missing[0]!r}, which is no parameter")
        taken = {"body"}
        for (place, name), parameter in found.items():
            read = self._parameter(place, name, parameter, taken)
            if read is not None:
                taken.add(read.argument)
                yield read

    def _parameter(
        self, place: str, name: str, parameter: Mapping[str, Any], taken: set[str]
    ) -> Parameter | None:
        required = parameter.get("required") is True or place == "path"
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            return None
        problem = self._problem(place, name, parameter)
        if problem is not None and required:
            raise UnsupportedDocument(f"the parameter {name!r}: {problem}")
        if problem is not None:
            return None
        schema = self._plain(parameter.get("schema"))
        described = parameter.get("description")
        if isinstance(described, str) and "description" not in schema:
            schema = {**schema, "description": described[:MAX_DESCRIPTION]}
        argument = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]
        argument = f"{place}_{argument}" if argument in taken else argument
        if argument in taken:
            raise UnsupportedDocument(f"two parameters are named {argument!r}")
        kind: Place = "path" if place == "path" else "query" if place == "query" else "header"
        return Parameter(argument=argument, name=name, place=kind, schema=schema, required=required)

    def _problem(self, place: str, name: str, parameter: Mapping[str, Any]) -> str | None:
        """Return why a parameter cannot be sent, or None."""
        if place not in {"path", "query", "header"}:
            return f"parameters in {place} are not supported"
        if place == "header" and (not _HEADER_NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS):
            return "the gateway does not send this header"
        if "schema" not in parameter:
            return "parameters with content are not supported"
        kind = self._resolve(_object(parameter["schema"])).get("type")
        is_list = kind == "array" and place == "query"
        if kind is not None and kind not in _SCALARS and not is_list:
            return f"the type {kind!r} is not supported in {place}"
        if parameter.get("style") not in {None, "form", "simple"} or (
            is_list and parameter.get("explode") is False
        ):
            return "its style is not supported"
        return None

    def _body(self, raw: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
        body = self._resolve(_object(raw.get("requestBody")))
        if not body:
            return None, False
        required = body.get("required") is True
        content = _object(body.get("content"))
        if _JSON not in content:
            if required:
                raise UnsupportedDocument(f"its body is {', '.join(content) or 'unknown'}, not {_JSON}")
            return None, False
        return self._plain(_object(content[_JSON]).get("schema")), required

    def _resolve(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a reference names; raises UnsupportedDocument."""
        for _ in range(MAX_DEPTH):
            reference = value.get("$ref")
            if not isinstance(reference, str):
                return value
            value = self._find(reference)
        raise UnsupportedDocument("its references never end")

    def _find(self, reference: str) -> Mapping[str, Any]:
        if not reference.startswith("#/"):
            raise UnsupportedDocument(f"the reference {reference!r} leads out of the document")
        place: Any = self._raw
        for part in reference[2:].split("/"):
            place = _object(place).get(part.replace("~1", "/").replace("~0", "~"))
        if not isinstance(place, dict):
            raise UnsupportedDocument(f"the reference {reference!r} names nothing")
        return place

    def _plain(self, schema: object) -> dict[str, Any]:
        """Return a schema without references; where it contains itself, it ends with {}."""
        plain: dict[str, Any] = self._copy(schema, ()) if isinstance(schema, dict) else {}
        return plain

    def _copy(self, value: Any, inside: tuple[str, ...]) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise UnsupportedDocument("its schemas are too large")
        if isinstance(value, list):
            return [self._copy(one, inside) for one in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$ref")
        if isinstance(reference, str):
            if reference in inside or len(inside) >= MAX_DEPTH:
                return {}
            return self._copy(self._find(reference), (*inside, reference))
        return {key: self._copy(one, inside) for key, one in value.items() if key not in _NOT_FOR_MODELS}
