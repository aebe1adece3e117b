"""Pages of lists: `?limit&cursor` in the query, `{items, next}` in the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Protocol, TypeVar

from pydantic import Field

from gateway.web.http.route import RequestModel, ResponseModel

Item = TypeVar("Item", bound=ResponseModel)


class _Identified(Protocol):
    @property
    def id(self) -> str:
        """The id that a cursor consists of."""


Row = TypeVar("Row", bound=_Identified)


class PageQuery(RequestModel):
    """A page of a list; `cursor` is the `next` of the previous page."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, Field(pattern=r"^[a-z]{3}_[0-9a-z]{1,40}$")] | None = None

    @property
    def after(self) -> str:
        """The id after which the page begins."""
        return self.cursor or ""


class ListPage(ResponseModel, Generic[Item]):
    """One page; `next` is null on the last."""

    items: list[Item]
    next: str | None = None


def paginate(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], str | None]:
    """Return the page and its `next`, given up to `limit` + 1 rows."""
    page = rows[:limit]
    return page, page[-1].id if len(rows) > limit and page else None
