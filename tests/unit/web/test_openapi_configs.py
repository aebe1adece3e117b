"""The configs of records in the OpenAPI document: channels by kind, merge patches, examples, the server."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, ValidationError
from pydantic import BaseModel

from channels.registry import built_in
from gateway.records.agent import AgentConfig
from gateway.records.kinds import SkillConfig, WorkspaceConfig
from gateway.web.openapi import document
from gateway.web.openapi_configs import CHANNEL_EXAMPLES, CONFIG_EXAMPLES
from gateway.web.openapi_tags import TAGS
from gateway.web.routes import ROUTES
from sandbox.config import SandboxConfig

DOCUMENT = document(ROUTES)
SCHEMAS = DOCUMENT["components"]["schemas"]
CONFIGS: dict[str, type[BaseModel]] = {
    "AgentCreate": AgentConfig,
    "WorkspaceCreate": WorkspaceConfig,
    "SandboxCreate": SandboxConfig,
    "SkillCreate": SkillConfig,
}


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of a component."""
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )


def check(name: str, value: Any) -> None:
    """Raise ValidationError if a value does not have the shape of a component."""
    validator(name).validate(value)


@pytest.mark.parametrize("kind", sorted(built_in()))
def test_a_channel_has_the_settings_of_its_kind(kind: str) -> None:
    """The discriminator leads to one member; the settings of another kind are not accepted there."""
    for whole in ("ChannelCreate", "Channel"):
        member = SCHEMAS[whole]["discriminator"]["mapping"][kind].rpartition("/")[2]
        assert {"$ref": f"#/components/schemas/{member}"} in SCHEMAS[whole]["oneOf"]
        assert SCHEMAS[member]["properties"]["kind"]["const"] == kind
    body = {"name": "a", "kind": kind, "settings": CHANNEL_EXAMPLES[kind]}
    check("ChannelCreate", body)
    for wrong in ({**body, "settings": {"surprise": 1}}, {**body, "kind": "pigeon"}, {"name": "a"}):
        with pytest.raises(ValidationError):
            check("ChannelCreate", wrong)


@pytest.mark.parametrize("name", sorted(CONFIG_EXAMPLES))
def test_an_example_is_a_body_that_is_accepted(name: str) -> None:
    """It has the shape that the document states, and the config passes the checks of the record."""
    check(name, CONFIG_EXAMPLES[name])
    if name in CONFIGS:
        CONFIGS[name].model_validate(CONFIG_EXAMPLES[name]["config"])


@pytest.mark.parametrize(
    ("plural", "update", "patch"),
    [
        ("agents", "AgentUpdate", {"limits": None, "hooks": {"webhook": None}, "mcp": {"birds": None}}),
        ("agents", "AgentUpdate", {"mcp": {"birds": {"timeout": 5}}}),
        ("workspaces", "WorkspaceUpdate", {"readOnly": None}),
        ("sandboxes", "SandboxUpdate", {"options": {}, "envVars": {"A": None}, "lifecycle": None}),
        ("skills", "SkillUpdate", {"description": None}),
    ],
)
def test_a_patch_names_only_what_changes(plural: str, update: str, patch: dict[str, Any]) -> None:
    """Null removes a field at any depth, and nothing is required; unknown fields are still refused."""
    body = DOCUMENT["paths"][f"/accounts/me/{plural}/{{id}}"]["patch"]["requestBody"]["content"]
    assert body["application/json"]["schema"] == {"$ref": f"#/components/schemas/{update}"}
    check(update, {"config": patch})
    with pytest.raises(ValidationError):
        check(update, {"config": {"surprise": 1}})


@pytest.mark.parametrize("kind", sorted(built_in()))
def test_a_setting_of_a_channel_can_be_changed_alone(kind: str) -> None:
    """Its secrets need not be sent again."""
    for change in ({"groups": "always"}, {"groups": None}, {"rooms": {"r1": {"agent": None}, "r2": None}}):
        check("ChannelUpdate", {"settings": change})
        check(f"{built_in()[kind].settings.__name__}Patch", change)
    with pytest.raises(ValidationError):
        check("ChannelUpdate", {"settings": {"groups": "sometimes"}})


def test_a_patch_component_has_no_required_fields_and_no_defaults() -> None:
    """A client that fills defaults in would change what it did not mean to."""
    patches = {name: one for name, one in SCHEMAS.items() if name.endswith("Patch")}
    assert len(patches) > 20
    assert not [name for name, shape in patches.items() if "required" in shape]
    bodies = [one["patch"]["requestBody"]["content"] for one in DOCUMENT["paths"].values() if "patch" in one]
    names = [body["application/json"]["schema"]["$ref"] for body in bodies if "application/json" in body]
    patches |= {name.rpartition("/")[2]: SCHEMAS[name.rpartition("/")[2]] for name in names}
    for shape in patches.values():
        assert not [field for field, one in shape["properties"].items() if "default" in one]


@pytest.mark.parametrize(
    ("public", "expected"), [("", "/"), ("https://bot.example.org/", "https://bot.example.org")]
)
def test_the_server_is_the_public_url(public: str, expected: str) -> None:
    """Without one, paths are relative to where the document was loaded from."""
    assert document(ROUTES, public_url=public)["servers"] == [{"url": expected}]


def test_an_upload_is_a_form_with_a_file() -> None:
    """The OpenAI route takes multipart/form-data alone; the other routes take the bytes of a file."""
    operation = DOCUMENT["paths"]["/v1/files"]["post"]
    body = operation["requestBody"]
    assert body["required"]
    form = SCHEMAS[body["content"]["multipart/form-data"]["schema"]["$ref"].rpartition("/")[2]]
    assert form["required"] == ["file"]
    assert form["properties"]["file"]["format"] == "binary"
    assert [one["name"] for one in operation["parameters"]] == ["Idempotency-Key"]


def test_a_part_of_an_upload_names_its_offset() -> None:
    """The header is a parameter of the operation, and required."""
    operation = DOCUMENT["paths"]["/accounts/me/workspaces/{id}/uploads/{upload}"]["patch"]
    assert [one["name"] for one in operation["parameters"] if one["in"] == "header" and one["required"]] == [
        "Upload-Offset"
    ]


def test_what_an_operation_returns_by_itself_comes_first() -> None:
    """A generator may read only the first media type: JSON where a stream is asked for, bytes of files."""
    first = {
        (next(iter(response["content"])), tuple(response["content"])[1])
        for path in DOCUMENT["paths"].values()
        for operation in path.values()
        for response in operation["responses"].values()
        if len(response.get("content", ())) > 1
    }
    assert first == {
        ("application/json", "text/event-stream"),
        ("application/octet-stream", "application/json"),
        ("application/octet-stream", "application/gzip"),
        ("application/octet-stream", "*/*"),
    }


def test_the_headers_that_sign_a_request_are_parameters() -> None:
    """A trigger takes one of two forms of signature, so none of its headers is required."""
    operation = DOCUMENT["paths"]["/triggers/{id}"]["post"]
    found = {one["name"]: one["required"] for one in operation["parameters"] if one["in"] == "header"}
    standard = ("webhook-id", "webhook-timestamp", "webhook-signature")
    assert found == dict.fromkeys((*standard, "X-Hub-Signature-256", "X-GitHub-Delivery"), False)


@pytest.mark.parametrize("name", ["TurnStatus", "JobStatus", "JobDetail", "Message"])
def test_the_files_of_a_response_are_typed(name: str) -> None:
    """A generated client has fields for the name, the size and the link of a file, and for usage."""
    kind = "MessageFile" if name == "Message" else "StoredFile"
    assert SCHEMAS[name]["properties"]["files"]["items"] == {"$ref": f"#/components/schemas/{kind}"}
    assert {"name", "size", "type", "url", "sha256"} <= SCHEMAS[kind]["properties"].keys()
    used = SCHEMAS["TurnStatus"]["properties"]["usage"]["anyOf"]
    assert {"$ref": "#/components/schemas/TurnUsage"} in used


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("Message", "role", "notice"),
        ("LastMessage", "role", "operator"),
        ("Attempt", "outcome", "give_up"),
        ("Job", "reason", "provider_unreachable"),
        ("Service", "state", "waiting"),
        ("UsagePart", "kind", "sandbox"),
    ],
)
def test_a_field_with_fixed_values_lists_them(name: str, field: str, value: str) -> None:
    """A generated client has a type for them, and its compiler finds a misspelt one."""
    schema = SCHEMAS[name]["properties"][field]
    given = next((one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"), schema)
    if "$ref" in given:
        given = SCHEMAS[given["$ref"].rpartition("/")[2]]
    assert value in given.get("enum", ())


def test_every_schema_is_referred_to() -> None:
    """Queries are parameters of their operations, so a generated client has no types that nothing uses."""
    text = json.dumps(DOCUMENT)
    assert [name for name in SCHEMAS if f'"#/components/schemas/{name}"' not in text] == []


def test_each_operation_is_in_a_group_that_is_described() -> None:
    """Pages of generators show the groups in the order of the document; none is empty."""
    operations = [one for path in DOCUMENT["paths"].values() for one in path.values()]
    used = {tag for one in operations for tag in one["tags"]}
    assert [one["name"] for one in DOCUMENT["tags"] if one["name"] in used] == list(TAGS)
    assert used <= set(TAGS)
    assert all(one["description"].startswith("Needs ") for one in operations)
