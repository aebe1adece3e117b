"""The AsyncAPI 3.0 document: what goes over the WebSocket and to webhooks."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from delivery.events.event import EventType
from gateway.web.http.auth import PublicAccess
from gateway.web.http.route import ApiCall, ApiRoute, NoContent
from gateway.web.openapi_tags import LICENSE
from gateway.web.stream.frames import ClientFrame

_REF = "#/components/schemas/{model}"

_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "An event. `seq` grows strictly within a conversation; `n` counts durable events.",
    "required": ["v", "id", "time", "type", "conversation", "data"],
    "properties": {
        "v": {"const": 1},
        "seq": {"type": "integer", "minimum": 1},
        "n": {"type": "integer", "minimum": 1},
        "id": {"type": "string"},
        "time": {"type": "string", "format": "date-time"},
        "type": {"enum": [str(kind) for kind in EventType]},
        "conversation": {"type": "string"},
        "turn": {"type": "string"},
        "data": {"type": "object"},
    },
}


def _frame(kind: str, about: str, **fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "required": ["type"],
        "properties": {"type": {"const": kind}} | fields,
    }


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_SERVER_FRAMES: dict[str, dict[str, Any]] = {
    "subscribed": _frame(
        "subscribed",
        "The replay begins.",
        conversation=_TEXT,
        epoch=_TEXT,
        first_seq=_NUMBER,
        last_seq=_NUMBER,
    ),
    "events": _frame("events", "Several events in one frame (batch).", items={"type": "array"}),
    "caught_up": _frame(
        "caught_up", "All stored events were sent; the following ones are live.", seq=_NUMBER
    ),
    "gap": _frame(
        "gap", "History was trimmed: these seqs are missing.", **{"from": _NUMBER}, to=_NUMBER, snapshot=_TEXT
    ),
    "reset": _frame("reset", "The cursor is of another epoch or ahead.", epoch=_TEXT, snapshot=_TEXT),
    "accepted": _frame(
        "accepted",
        "A message was stored; or a command was executed, which has no turn.",
        id=_TEXT,
        turn={"type": ["string", "null"]},
        conversation=_TEXT,
        command=_TEXT,
        reply={"type": ["string", "null"]},
    ),
    "error": _frame("error", "A frame was refused.", code=_TEXT, detail=_TEXT),
    "pong": _frame("pong", "The answer to a ping."),
}


def document() -> dict[str, Any]:
    """Return the AsyncAPI document."""
    received = TypeAdapter[ClientFrame](ClientFrame).json_schema(ref_template=_REF)
    schemas = received.pop("$defs", {}) | {"Event": _EVENT, "Received": received}
    messages = {name: {"payload": shape} for name, shape in _SERVER_FRAMES.items()}
    event = {"payload": {"$ref": "#/components/schemas/Event"}}
    frame = {"payload": {"$ref": "#/components/schemas/Received"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Dovecote streams and webhooks",
            "version": version("dovecote"),
            "description": "The frames of the WebSocket and the bodies of webhooks.",
            "license": {"name": LICENSE["name"]},
        },
        "channels": {
            "socket": {"address": "/ws", "messages": {"event": event, "received": frame, **messages}},
            "webhook": {"address": "{url}", "parameters": {"url": {}}, "messages": {"event": event}},
        },
        "operations": {
            "follow": {
                "action": "send",
                "channel": {"$ref": "#/channels/socket"},
                "messages": [{"$ref": f"#/channels/socket/messages/{name}"} for name in ("event", *messages)],
            },
            "ask": {
                "action": "receive",
                "channel": {"$ref": "#/channels/socket"},
                "messages": [{"$ref": "#/channels/socket/messages/received"}],
            },
            "tell": {"action": "send", "channel": {"$ref": "#/channels/webhook"}},
        },
        "components": {"schemas": schemas},
    }


@cache
def _text() -> bytes:
    return json.dumps(document(), separators=(",", ":")).encode()


async def serve(_call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Return the document."""
    return web.Response(body=_text(), content_type="application/json")


ROUTES = (
    ApiRoute(
        method="GET",
        path="/asyncapi.json",
        access=PublicAccess(),
        handler=serve,
        summary="the AsyncAPI document of streams and webhooks",
        media_type="application/json",
        tag="documents",
    ),
)
