"""The base of models for settings, records and requests: a boolean is no number."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationInfo, field_validator


def _accepted_types(annotation: Any) -> Iterator[Any]:
    """Yield the types of a field, those of a union one by one."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        yield from _accepted_types(arguments[0])
    elif get_origin(annotation) in (Union, UnionType):
        for one in arguments:
            yield from _accepted_types(one)
    else:
        yield annotation


class TypedModel(BaseModel):
    """Base of what people write: `true` is no number, although Python takes it for 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean_numbers(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool):
            types = set(_accepted_types(cls.model_fields[info.field_name or ""].annotation))
            if types & {int, float} and bool not in types:
                raise ValueError("must be a number, not true or false")
        return value
