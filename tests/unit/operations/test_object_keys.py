"""An error about a key that does not exist names the one that was meant."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.config.load import load
from gateway.config.object_keys import MAX_KEY, suggest_key
from gateway.config.settings import InvalidSettings
from gateway.records.input_problems import MAX_SUGGESTIONS, to_problems


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Leaf(_Closed):
    base_url: str = ""
    turn_timeout: float = Field(default=1.0, alias="turnTimeoutSeconds")


class _Tree(_Closed):
    name: str = ""
    first: Annotated[_Leaf | None, Field(description="one")] = None
    items: tuple[_Leaf, ...] = ()
    by_name: dict[str, _Leaf] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        (["nmae"], "did you mean name?"),
        (["first", "baseUrl"], "did you mean base_url?"),
        (["first", "TurnTimeoutSecond"], "did you mean turnTimeoutSeconds?"),
        (["items", 3, "base-url"], "did you mean base_url?"),
        (["by_name", "x", "baseurl"], "did you mean base_url?"),
        (["colour"], "the keys are by_name, first, items, name"),
        (["name", "part"], ""),
        (["nowhere", "part"], ""),
        (["n" * (MAX_KEY + 1)], "the keys are by_name, first, items, name"),
    ],
)
def test_the_similar_key_of_the_same_object_is_suggested(path: list[str | int], suggestion: str) -> None:
    """Case and separators do not count, and every kind of container is followed."""
    assert suggest_key(_Tree, path) == suggestion


def test_a_request_with_unknown_keys_says_what_they_could_be() -> None:
    """Only some are compared: a request can have as many as fit in it."""
    wrong: dict[str, Any] = {"nmae": 1, "first": {"base_ulr": 2}} | {f"name{n}": n for n in range(50)}
    with pytest.raises(ValidationError) as caught:
        _Tree.model_validate(wrong)
    details = {one.pointer: one.detail for one in to_problems(caught.value, wrong, _Tree)}
    assert details["/first/base_ulr"] == "there is no such key; did you mean base_url?"
    assert details["/nmae"] == "there is no such key; did you mean name?"
    assert sum("did you mean" in detail for detail in details.values()) == MAX_SUGGESTIONS
    assert details["/name49"] == "there is no such key"


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ({"prot": 1}, "Did you mean port?"),
        ({"sandbox": {"provdier": "host"}}, "Did you mean provider?"),
        ({"quite_different": 1}, "Remove it or correct its name"),
    ],
)
def test_a_misspelt_setting_is_corrected_in_the_error(table: dict[str, Any], remedy: str) -> None:
    """The remedy is the name that exists, as for a misspelt variable."""
    with pytest.raises(InvalidSettings) as caught:
        load(table, env={})
    assert [one.remedy for one in caught.value.problems] == [remedy]
