"""The values of JSON text are counted without parsing it, also piece by piece."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from egress.json_values import JsonValues, has_more_values

SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab,[]{}:"\\ é', max_size=6)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('k"\\,', max_size=3), inner)
)


def count_values(value: Any) -> tuple[int, int]:
    """Return how many values a value has, itself included, and how many of them are empty containers."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if not inner:
        return 1, int(inner is not None)
    counts = [count_values(one) for one in inner]
    return 1 + sum(one for one, _ in counts), sum(empty for _, empty in counts)


@given(value=VALUES, indent=st.sampled_from([None, 1]), is_ascii=st.booleans(), size=st.integers(1, 9))
def test_every_value_is_counted_once(value: Any, indent: int | None, is_ascii: bool, size: int) -> None:
    """Signs of JSON in texts, escapes and cuts change nothing; empty arrays and objects count as two."""
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()
    counted = JsonValues()
    for start in range(0, len(text), size):
        counted.add(text[start : start + size])
    values, empty = count_values(value)
    assert counted.count == values + empty
    assert not has_more_values(text, counted.count)
    assert has_more_values(text, counted.count - 1) == (len(text) > counted.count - 1)
