"""Parts of CloudFormation templates as values."""

from __future__ import annotations

from typing import Any

Resource = dict[str, Any]
Resources = dict[str, Resource]


def resource(
    kind: str, properties: Resource, *, after: str | tuple[str, ...] = (), keep: bool | None = None
) -> Resource:
    """Return a resource; `keep` says what happens to it when the stack is deleted or it is replaced."""
    made: Resource = {"Type": f"AWS::{kind}", "Properties": properties}
    if after:
        made["DependsOn"] = [after] if isinstance(after, str) else list(after)
    if keep is not None:
        fate = "Retain" if keep else "Delete"
        made |= {"DeletionPolicy": fate, "UpdateReplacePolicy": fate}
    return made


def ref(name: str) -> Resource:
    """Return a reference to a resource or a parameter."""
    return {"Ref": name}


def attribute(name: str, wanted: str) -> Resource:
    """Return an attribute of a resource."""
    return {"Fn::GetAtt": [name, wanted]}


def sub(text: str) -> Resource:
    """Return a text in which CloudFormation fills in names."""
    return {"Fn::Sub": text}


def policy(*statements: Resource) -> Resource:
    """Return a policy document."""
    return {"Version": "2012-10-17", "Statement": list(statements)}
