"""Schemas of records' configs in the OpenAPI document: merge patches, and channels by the kind of adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PATCH = "Patch"
_PREFIX = "#/components/schemas/"
_PATCH_TEXT = "A JSON merge patch: what is left out stays, and null removes it."

CHANNEL_EXAMPLES: Mapping[str, dict[str, Any]] = {
    "telegram": {"token": "123456789:the-token-from-BotFather"},
    "slack": {"bot_token": "xoxb-the-bot-token", "app_token": "xapp-the-app-token"},
    "discord": {"token": "the-token-of-the-bot"},
    "github": {
        "app_id": "123456",
        "private_key": "-----BEGIN RSA PRIVATE KEY-----\n…\n-----END RSA PRIVATE KEY-----",
        "webhook_secret": "a-secret-of-your-choice",
    },
    "zalo": {"token": "123456789:the-token-from-Zalo-Bot-Manager"},
    "pancake": {"page_id": "1234567890", "page_access_token": "the-token-of-the-page"},
}
"""The settings without which a channel of a built-in adapter cannot be created."""


CONFIG_EXAMPLES: Mapping[str, dict[str, Any]] = {
    "AgentCreate": {
        "name": "helper",
        "config": {"model": "builtin:shell", "instructions": "Answer in one sentence.", "sandbox": "default"},
    },
    "AgentUpdate": {"config": {"instructions": "Answer in two sentences.", "sandbox": None}},
    "WorkspaceCreate": {"name": "handbook", "config": {"readOnly": True}},
    "WorkspaceUpdate": {"config": {"readOnly": False}},
    "SandboxCreate": {"name": "small", "config": {"provider": "host", "memoryLimit": 256, "timeout": 60}},
    "SandboxUpdate": {"config": {"timeout": 300}},
    "SkillCreate": {"name": "release-notes", "config": {"description": "How release notes are written."}},
    "SkillUpdate": {"config": {"description": "How release notes are written and checked."}},
    "ChannelUpdate": {"agent": "helper", "settings": {"groups": "always"}},
    "WebhookUpdate": {"events": ["agent.finished", "job.completed"]},
    "ScheduleUpdate": {"paused": True},
}
"""One body of each kind of record, as it is sent."""


def add_examples(schemas: dict[str, Any]) -> None:
    """Add an example to the bodies that create and change records."""
    for name, example in CONFIG_EXAMPLES.items():
        schemas[name] = {**schemas[name], "examples": [example]}


def add_patches(schemas: dict[str, Any]) -> None:
    """Add the merge patch of each schema whose patch is referred to, and of those within it."""
    for name in [one for one in _references(schemas) if one not in schemas]:
        _add_patch(name.removesuffix(PATCH), schemas)


def drop_defaults(schemas: dict[str, Any], names: Iterable[str]) -> None:
    """Drop the defaults of bodies that change something: what is left out there stays as it is."""
    for name in names:
        fields = schemas[name].get("properties", {})
        kept = {
            field: {key: one for key, one in shape.items() if key != "default"}
            for field, shape in fields.items()
        }
        schemas[name] = {**schemas[name], "properties": kept}


def referred(schemas: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas that the operations refer to, also through others."""
    kept: set[str] = set()
    waiting = _references(paths)
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept.add(name)
            waiting += _references(schemas[name])
    return {name: schema for name, schema in schemas.items() if name in kept}


def add_channels(schemas: dict[str, Any], settings: Mapping[str, str]) -> None:
    """Make channels unions by their kind; `settings` names the schema of each kind's settings."""
    for whole in ("ChannelCreate", "Channel"):
        members = {kind: f"{kind.title()}{whole}" for kind in settings}
        for kind, name in members.items():
            schemas[name] = _channel_of(kind, schemas[whole], name, settings[kind], schemas)
        schemas[whole] = {
            "title": whole,
            "description": schemas[whole].get("description", ""),
            "oneOf": [_reference(name) for name in members.values()],
            "discriminator": {
                "propertyName": "kind",
                "mapping": {kind: f"{_PREFIX}{name}" for kind, name in members.items()},
            },
        }
    changes = [_reference(f"{name}{PATCH}") for name in settings.values()]
    properties = {**schemas["ChannelUpdate"]["properties"], "settings": {"anyOf": changes}}
    schemas["ChannelUpdate"] = {**schemas["ChannelUpdate"], "properties": properties}


def _channel_of(
    kind: str, whole: Mapping[str, Any], name: str, settings: str, schemas: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the schema of one kind's channels; required settings make the settings required."""
    required = [*whole.get("required", ()), *(["settings"] if schemas[settings].get("required") else [])]
    shapes = {"kind": {"type": "string", "const": kind}, "settings": _reference(settings)}
    made = {**whole, "title": name, "properties": {**whole["properties"], **shapes}}
    made["required"] = sorted(set(required))
    if name.endswith("Create") and kind in CHANNEL_EXAMPLES:
        made["examples"] = [{"name": f"my-{kind}", "kind": kind, "settings": CHANNEL_EXAMPLES[kind]}]
    return made


def _add_patch(name: str, schemas: dict[str, Any]) -> str:
    """Add the merge patch of an object's schema, and return its name."""
    added = f"{name}{PATCH}"
    if added not in schemas:
        whole = schemas[name]
        schemas[added] = {}  # a schema may refer to itself
        kept = {key: one for key, one in whole.items() if key not in {"required", "properties", "examples"}}
        fields = {field: _nullable(_patch_of(shape, schemas)) for field, shape in whole["properties"].items()}
        schemas[added] = {**kept, "title": added, "description": _PATCH_TEXT, "properties": fields}
    return added


def _patch_of(shape: Mapping[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return what changes a value: an object field by field, anything else as a whole."""
    name = str(shape.get("$ref", "")).removeprefix(_PREFIX)
    if name:
        return _reference(_add_patch(name, schemas)) if schemas[name].get("properties") else dict(shape)
    changed = {key: one for key, one in shape.items() if key not in {"default", "discriminator", "oneOf"}}
    members = shape.get("anyOf") or shape.get("oneOf")
    if members:
        changed["anyOf"] = [_patch_of(one, schemas) for one in members]
    if isinstance(shape.get("additionalProperties"), dict):
        changed["additionalProperties"] = _nullable(_patch_of(shape["additionalProperties"], schemas))
    return changed


def _nullable(shape: dict[str, Any]) -> dict[str, Any]:
    null, members = {"type": "null"}, shape.get("anyOf")
    if members is None:
        return {"anyOf": [shape, null]}
    return shape if null in members else {**shape, "anyOf": [*members, null]}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"{_PREFIX}{name}"}


def _references(value: Any) -> list[str]:
    """Return the names of the schemas that a value refers to, each once."""
    found: dict[str, None] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            name = one.get("$ref")
            if isinstance(name, str):
                found[name.removeprefix(_PREFIX)] = None
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return list(found)
