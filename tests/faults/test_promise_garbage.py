"""G15: every entry point refuses invalid bodies and headers soon, and memory does not grow.

Three hundred requests and some of posts, signatures and sockets here, or as many as
`DOVECOTE_TEST_EXAMPLES` says; `python -m bench.fuzz` has ten thousand of each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import fuzz
from channels.registry import built_in
from signature_cases import SIGNATURE_CASES

EXAMPLES = int(os.environ.get("DOVECOTE_TEST_EXAMPLES", "300"))
pytestmark = pytest.mark.timeout(60 + EXAMPLES // 5)

MUCH = 64
"""Megabytes: more than anything here may cost."""


@pytest.mark.parametrize("kind", sorted(built_in()))
async def test_g15_no_post_to_a_channel_is_a_fault(kind: str) -> None:
    """Rightly signed nonsense and wrongly signed anything are 2xx, 400 or 401."""
    result = await fuzz.channel(kind, EXAMPLES // 2)
    assert bool(result.outcomes[401]) is result.signed
    assert result.grown < MUCH
    assert result.errors == []


async def test_g15_no_request_is_a_fault(tmp_path: Path) -> None:
    """Bodies, methods and headers of every kind over a real connection: never a 5xx, never a hang."""
    result = await fuzz.api(tmp_path, EXAMPLES)
    assert result.outcomes[400]
    assert result.outcomes[401]
    assert result.grown < MUCH
    assert result.errors == []


@pytest.mark.parametrize("name", sorted(SIGNATURE_CASES))
def test_g15_nothing_that_is_nearly_signed_passes_or_breaks(name: str) -> None:
    """M4: a verifier accepts what was signed and refuses all other headers and bodies."""
    assert fuzz.verifier(name, EXAMPLES // 4).outcomes["refused"]


async def test_g15_frames_of_any_kind_end_their_own_connection() -> None:
    """G8: broken, cut, giant and nonsensical frames end with a code of the protocol; no fault is logged."""
    result = await fuzz.sockets(EXAMPLES // 4)
    assert result.outcomes[1002]
    assert result.grown < MUCH
    assert result.errors == []
