"""Lists by page: `?limit&cursor` in, `{items, next}` out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Protocol, TypeVar

from pydantic import Field

from gateway.web.http.route import Shown, Strict

Item = TypeVar("Item", bound=Shown)


class _Identified(Protocol):
    @property
    def id(self) -> str:
        """The id a cursor is made of."""


Found = TypeVar("Found", bound=_Identified)


class Page(Strict):
    """Which part of a list: `cursor` is the `next` of the page before."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(pattern=r"^[a-z]{3}_[0-9a-z]{1,40}$")] | None = None

    @property
    def after(self) -> str:
        """The id to go on after."""
        return self.cursor or ""


class Items(Shown, Generic[Item]):
    """One page; `next` is null on the last."""

    items: list[Item]
    next: str | None = None


def cut(found: Sequence[Found], limit: int) -> tuple[Sequence[Found], str | None]:
    """Return the page of what was found with one more than `limit` asked for, and its `next`."""
    page = found[:limit]
    return page, page[-1].id if len(found) > limit and page else None
