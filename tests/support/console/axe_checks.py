"""Check a page with axe-core, which finds what people with disabilities could not use."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import Any

from playwright.async_api import Page

FOLDER = Path(__file__).parent / "axe"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
SEVERE = {"moderate", "serious", "critical"}


@functools.cache
def _source() -> str:
    content = gzip.decompress((FOLDER / "axe.min.js.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SHA256
    return content.decode()


async def find_barriers(page: Page) -> list[str]:
    """Return what axe finds that is at least moderate: the rule and the elements."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(_source())
    found: list[dict[str, Any]] = await page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations)"
    )
    return [_describe(one) for one in found if one["impact"] in SEVERE]


def _describe(violation: dict[str, Any]) -> str:
    places = "; ".join(f"{node['target']} {node['failureSummary']}" for node in violation["nodes"][:3])
    return f"{violation['id']} ({violation['impact']}): {places}"
