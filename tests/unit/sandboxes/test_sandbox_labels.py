"""Namespaces of workspaces: one key for one pair of ids, and nothing of the ids in it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from sandbox.labels import KEY_LENGTH, namespace

IDS = st.one_of(st.text(), st.sampled_from(["*", ">", "a.b", "../x", "\r\n", "x" * 4096, "a", ""]))


@given(IDS, IDS)
def test_a_namespace_is_a_plain_path_component(account: str, workspace: str) -> None:
    """Whatever the ids hold, the namespace is short, lower-case and the same every time."""
    key = namespace(account, workspace)
    assert re.fullmatch(rf"[a-z2-7]{{{KEY_LENGTH}}}", key)
    assert key == namespace(account, workspace)


@given(IDS, IDS, IDS, IDS)
def test_different_pairs_never_share_a_namespace(a: str, b: str, c: str, d: str) -> None:
    """Two workspaces have one namespace only if both ids are the same."""
    assert ((a, b) == (c, d)) == (namespace(a, b) == namespace(c, d))
