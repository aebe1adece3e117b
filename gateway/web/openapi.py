"""The OpenAPI 3.1 document, generated from the URL table."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema

from channels.registry import installed
from gateway.records.agent import AgentConfig
from gateway.records.kinds import SkillConfig, WorkspaceConfig
from gateway.web.api.files.file_shapes import SHAPES
from gateway.web.http.auth import (
    TICKET_PARAMETER,
    AdminAccess,
    JobTokenAccess,
    KeyAccess,
    OneTimeCodeAccess,
    PlatformAccess,
    PublicAccess,
    SignatureAccess,
    SignedLinkAccess,
    SocketAccess,
    TicketAccess,
)
from gateway.web.http.problems import MEDIA_TYPE, ProblemDetails
from gateway.web.http.route import MODEL_KEY, ApiCall, ApiRoute, NoContent
from gateway.web.openapi_conditions import condition_parameters, condition_responses, version_header
from gateway.web.openapi_configs import add_channels, add_examples, add_patches, drop_defaults, referred
from gateway.web.openapi_tags import LICENSE, TAGS, describe_access
from sandbox.config import SandboxConfig

EVENT_STREAM = "text/event-stream"
_REF = "#/components/schemas/{model}"
_MODE = {True: "serialization", False: "validation"}
RECORD_CONFIGS: tuple[type[BaseModel], ...] = (AgentConfig, WorkspaceConfig, SandboxConfig, SkillConfig)
"""The configs of records, which their routes take and return as plain objects."""

_SECURITY: dict[type, list[dict[str, list[str]]]] = {
    KeyAccess: [{"key": []}],
    TicketAccess: [{"key": []}, {"ticket": []}],
    AdminAccess: [{"admin": []}],
    JobTokenAccess: [{"job": []}],
    SocketAccess: [{"key": []}],
    SignedLinkAccess: [{}, {"key": []}],
    PublicAccess: [],
    PlatformAccess: [],
    SignatureAccess: [],
    OneTimeCodeAccess: [],
}
_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "an account's API key (dvk_…)"},
    "admin": {"type": "http", "scheme": "bearer", "description": "the operator's key"},
    "job": {"type": "http", "scheme": "bearer", "description": "the token of one background job"},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": TICKET_PARAMETER,
        "description": "a ticket of `POST /tickets`",
    },
}


def component_name(name: str) -> str:
    """Return the name of a schema in public documents: a model's name without `Response`."""
    return re.sub(r"(?<=[A-Za-z])Response(?![A-Za-z])", "", name)


class PublicSchema(GenerateJsonSchema):
    """JSON schemas with the public names of our classes: `Job` for `JobResponse`."""

    def normalize_name(self, name: str) -> str:
        """Return the name of a component."""
        return super().normalize_name(component_name(name))

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return a model's schema with its public title."""
        made = super().model_schema(schema)
        if "title" in made:
            made["title"] = component_name(made["title"])
        return made


def document(routes: Sequence[ApiRoute], *, public_url: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of these routes; without a public URL paths are relative to its own."""
    public = [route for route in routes if not route.hidden]
    used: list[tuple[type[BaseModel], Any]] = [(ProblemDetails, "serialization")]
    adapters = {kind: adapter.settings for kind, adapter in installed().items()}
    used += [(model, _MODE[False]) for model in (*RECORD_CONFIGS, *SHAPES, *adapters.values())]
    for route in public:
        taken = (route.request_model, route.form_model, route.query_model)
        used += [(model, _MODE[False]) for model in taken if model is not None]
        used += [(model, _MODE[True]) for model in (route.response_model,) if model is not None]
    references, definitions = models_json_schema(used, ref_template=_REF, schema_generator=PublicSchema)
    schemas = _with_models(definitions.get("$defs", {}))
    add_channels(schemas, {kind: _component(references, model) for kind, model in adapters.items()})
    add_patches(schemas)
    add_examples(schemas)
    changes = [route.request_model for route in public if route.method == "PATCH" and route.request_model]
    drop_defaults(schemas, {_component(references, model) for model in changes})
    paths: dict[str, dict[str, Any]] = {}
    for route in public:
        operation = _operation(route, references, schemas)
        paths.setdefault(_openapi_path(route.path), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dovecote",
            "version": version("dovecote"),
            "description": "Dovecote connects chat platforms to AI agents that run in sandboxes.",
            "license": LICENSE,
        },
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "servers": [{"url": public_url.rstrip("/") or "/"}],
        "paths": paths,
        "components": {"schemas": referred(schemas, paths), "securitySchemes": _SCHEMES},
    }


def _component(references: Any, model: type[BaseModel]) -> str:
    return str(references[model, _MODE[False]]["$ref"]).rpartition("/")[2]


def _with_models(value: Any) -> Any:
    """Return schemas with references to models, and with secrets as texts: they may be masks."""
    if isinstance(value, list):
        return [_with_models(one) for one in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get(MODEL_KEY), str):
        return {"$ref": _REF.format(model=value[MODEL_KEY])}
    if value.get("format") == "password":
        return {key: one for key, one in value.items() if key in {"type", "format", "title", "description"}}
    return {key: _with_models(one) for key, one in _with_named_values(value).items()}


def _with_named_values(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of a mapping as generators know it: `additionalProperties`, not `patternProperties`."""
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict) or len(patterns) != 1 or "additionalProperties" in schema:
        return schema
    ((pattern, shape),) = patterns.items()
    rest = {key: one for key, one in schema.items() if key != "patternProperties"}
    names = {**schema.get("propertyNames", {}), "pattern": pattern}
    return {**rest, "propertyNames": names, "additionalProperties": shape}


def _openapi_path(path: str) -> str:
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", path)


def _name(route: ApiRoute) -> str:
    return (
        f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', _openapi_path(route.path).lower()).strip('_')}"
    )


def _operation(route: ApiRoute, references: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "description": describe_access(route.access),
        "tags": [route.tag],
        "security": _SECURITY[type(route.access)],
        "parameters": [*_path_parameters(route), *_query_parameters(route, references, definitions)],
        "responses": _responses(route, references),
    }
    operation["parameters"] += [*_header_parameters(route), *condition_parameters(route)]
    body = _request_body(route, references)
    return {**operation, "requestBody": body} if body else operation


def _request_body(route: ApiRoute, references: Any) -> dict[str, Any]:
    """Return the body of a request: JSON, a form, or bytes."""
    if route.request_model is not None:
        return {
            "required": not route.optional_body,
            "content": {
                JSON_TYPE: {"schema": _with_batch(route, references[route.request_model, "validation"])}
            },
        }
    if route.form_model is not None:
        form = {"schema": references[route.form_model, "validation"]}
        return {"required": True, "content": {"multipart/form-data": form}}
    if route.raw and route.method in ("PUT", "POST", "PATCH"):
        return {"content": {BYTES_TYPE: {"schema": {}}}}
    return {}


def _with_batch(route: ApiRoute, body: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body, or of a body or a list of bodies."""
    if not route.batch:
        return body
    return {"anyOf": [body, {"type": "array", "items": body, "minItems": 1, "maxItems": route.batch}]}


JSON_TYPE, BYTES_TYPE = "application/json", "application/octet-stream"

_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "a repeat with the same key returns the first response",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$", "maxLength": 200},
}


def _header_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    """Return the headers that the route's handler reads itself, and the Idempotency-Key."""
    found = [
        {"name": name, "in": "header", "required": needed, "description": text, "schema": {"type": "string"}}
        for needed, headers in ((True, route.required_headers), (False, route.optional_headers))
        for name, text in headers.items()
    ]
    keeps_responses = not route.raw or route.form_model is not None
    if route.method == "POST" and isinstance(route.access, KeyAccess | AdminAccess) and keeps_responses:
        found.append(_IDEMPOTENCY)
    return found


def _path_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", _openapi_path(route.path))
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]


def _query_parameters(route: ApiRoute, references: Any, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query_model is NoContent:
        return []
    name = references[route.query_model, "validation"]["$ref"].rpartition("/")[2]
    schema = definitions[name]
    required = set(schema.get("required", ()))
    return [
        {"name": field, "in": "query", "required": field in required, "schema": field_schema}
        for field, field_schema in schema.get("properties", {}).items()
    ]


def _responses(route: ApiRoute, references: Any) -> dict[str, Any]:
    problem = {
        "description": "a problem (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": references[ProblemDetails, "serialization"]}},
    }
    ok: dict[str, Any] = {"description": route.summary, **version_header(route)}
    content: dict[str, Any] = {}
    if route.media_type is not None:
        is_text = route.media_type.startswith("text/")
        if not is_text and route.media_type != JSON_TYPE:  # bytes; some generators read no other type of them
            content[BYTES_TYPE] = {"schema": {}}
        content[route.media_type] = {"schema": {"type": "string"} if is_text else {}}
    if route.response_model is not None:
        content[JSON_TYPE] = {"schema": references[route.response_model, "serialization"]}
    if EVENT_STREAM in content:  # last, because some generators read only the first media type
        content[EVENT_STREAM] = content.pop(EVENT_STREAM)
    if content:
        ok["content"] = content
    also = {str(status): {**problem, "description": text} for status, text in route.error_responses.items()}
    also |= {str(status): {"description": text} for status, text in route.empty_responses.items()}
    also |= condition_responses(route, problem)
    usual = {str(status): {**problem, "description": HTTPStatus(status).phrase} for status in _errors(route)}
    return {**usual, **also, str(route.status): ok}


def _errors(route: ApiRoute) -> list[int]:
    statuses = [400, 404, 408, 413, 414, 415, 422, 429, 431, 503]
    if not isinstance(route.access, PublicAccess):
        statuses += [401, 403]
    return sorted(statuses)


def handler_for(
    routes: Callable[[], Sequence[ApiRoute]],
) -> Callable[[ApiCall[NoContent, NoContent]], Awaitable[web.Response]]:
    """Return the handler that serves the document of `routes`, generated at the first request."""

    @cache
    def body(public_url: str) -> bytes:
        return json.dumps(document(routes(), public_url=public_url), separators=(",", ":")).encode()

    async def serve(call: ApiCall[NoContent, NoContent]) -> web.Response:
        """Return the document."""
        content = await asyncio.to_thread(body, call.context.public_url or "")  # takes up to 300 ms once
        return web.Response(body=content, content_type="application/json")

    return serve
