"""The pages of the documentation, their links and their anchors, without a Markdown library."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP_PAGES = ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
_FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(\s*([^)\s]+)(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """A link of a page: the file it leads to and the anchor there, which may be empty."""

    page: Path
    target: str
    file: Path
    anchor: str


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages of the site."""
    return [*(root / name for name in TOP_PAGES), *sorted((root / "docs").rglob("*.md"))]


def links(page: Path) -> Iterator[PageLink]:
    """Yield the links of a page to files of the repository; code is no link."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text()))
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        yield PageLink(page=page, target=target, file=file, anchor=anchor)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    counts: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        slug = slugify(heading)
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def slugify(heading: str) -> str:
    """Return the anchor of a heading: lower case, no punctuation, a hyphen for each space."""
    text = _MARKUP.sub(r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken_links(root: Path = ROOT) -> list[str]:
    """Return each link whose file or anchor does not exist."""
    broken = []
    for page in pages(root):
        for link in links(page):
            missing = not link.file.exists() or (
                link.anchor and link.file.suffix == ".md" and link.anchor not in anchors(link.file)
            )
            if missing:
                broken.append(f"{page.relative_to(root)}: {link.target}")
    return broken
