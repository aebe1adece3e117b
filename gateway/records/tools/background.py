"""Which tools of an agent record can be background jobs: those that run in the sandbox by themselves."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

REMEDY = (
    "the gateway makes this call itself, and it would end with the gateway: leave async out, or write a "
    "script of the workspace that makes it, with async: true (tools.scripts)"
)


def _refuse(wanted: bool) -> bool:  # noqa: FBT001 - as pydantic calls it
    if wanted:
        raise ValueError(REMEDY)
    return wanted


NoBackground = Annotated[StrictBool, AfterValidator(_refuse), Field(alias="async")]
"""The mark `async` of a tool that cannot be a background job: true is refused with the remedy."""
