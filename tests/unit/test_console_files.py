"""The console's files: all there, all listed, nothing inline and nothing foreign."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from gateway import console
from gateway.web.routes import ROUTES

FOLDER = Path(console.__file__).parent
SCRIPTS = sorted(FOLDER.rglob("*.js"))
LICENSES = {f"vendor/LICENSE.{name}" for name in ("preact", "htm", "markdown-it", "highlight")}
IMPORTS_NOTHING = "vendor/highlight.mjs"
"""Its patterns of languages have the word `import`, also before texts in quotes."""

PRIVATE = {"__init__.py", "package.json", "vendor/VENDORED.md", *LICENSES}

FOR_ALL_PAGES = {"base.css", "print.css"}
SHARED_CLASSES = {"card", "scroll", "view"}
"""Elements of lists, of pages and of conversations."""


def test_every_listed_file_is_there() -> None:
    """Each public file loads with a body, a media type and a quoted ETag of its own."""
    etags = set()
    for name in console.FILES:
        body, _compressed, media_type, etag = console.load(name)
        assert body
        assert "/" in media_type
        assert re.fullmatch(r'"[0-9a-f]{32}"', etag)
        etags.add(etag)
    assert len(etags) == len(console.FILES)


def test_every_file_in_the_folder_is_listed_or_meant_to_be_private() -> None:
    """A file that is added and not listed would be missing from the page."""
    found = {
        path.relative_to(FOLDER).as_posix()
        for path in FOLDER.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == set(console.FILES) | PRIVATE


def test_no_style_sheet_is_fetched_late() -> None:
    """The page waits until each has rules; browsers fetch one for another medium after the others."""
    page = console.load("index.html").body.decode()
    links = re.findall(r"<link rel=\"stylesheet\"[^>]*>", page)
    assert len(links) == sum(name.endswith(".css") for name in console.FILES)
    assert not [link for link in links if "media" in link]


@pytest.mark.parametrize(
    "name", ["", "__init__.py", "../secrets.py", "/etc/passwd", "vendor", "package.json"]
)
def test_nothing_else_is_served(name: str) -> None:
    """Any other name is not served as a file, wherever it would point."""
    with pytest.raises(KeyError):
        console.load(name)


def test_every_import_names_a_public_file() -> None:
    """The browser can fetch every import of a module, without a map and without a build."""
    for name in console.FILES:
        if not name.endswith(("js", "mjs")) or name == IMPORTS_NOTHING:
            continue
        text = console.load(name).body.decode()
        for wanted in re.findall(r'(?:from|import|fetched)[\s(]*"([^"]+)"', text):
            target = (FOLDER / name).parent / wanted
            assert wanted.startswith(("./", "../")), f"{name} imports {wanted}"
            assert target.resolve().relative_to(FOLDER.resolve()).as_posix() in console.FILES


def test_the_manifest_to_copy_is_the_one_of_the_guide() -> None:
    """The console offers the same manifest as the documents."""
    guide = FOLDER.parents[1] / "docs" / "guide" / "channels" / "slack-manifest.yaml"
    assert console.load("setup/slack-manifest.yaml").body == guide.read_bytes()


def test_no_file_hides_behind_a_path_of_the_interface() -> None:
    """No folder of the console has the name of a collection, whose `{id}` would match its files."""
    collections = {route.path.split("/")[1] for route in ROUTES if route.path.count("/") > 1}
    assert not {name.split("/")[0] for name in console.FILES if "/" in name} & collections


def test_the_first_page_is_small() -> None:
    """Whatever the first page fetches, with every module that it imports, is below 150 KB compressed."""
    wanted, fetched = ["index.html", "app.js", "home/home.js"], dict[str, int]()
    while wanted:
        name = wanted.pop()
        if name in fetched:
            continue
        asset = console.load(name)
        fetched[name] = len(asset.compressed)
        found = re.findall(r'(?:from\s*|import\s*|(?:src|href)=)"([^"]+)"', asset.body.decode())
        folder = (FOLDER / name).parent
        linked = [
            (folder / one).resolve().relative_to(FOLDER.resolve()).as_posix()
            for one in found
            if "://" not in one and "#" not in one
        ]
        wanted.extend(one for one in linked if one in console.FILES)
    assert len(fetched) > 20
    assert sum(fetched.values()) < 150_000


def test_only_the_loader_is_inline() -> None:
    """The policy allows one script of the index, by its digest, and forbids everything else inline."""
    page = console.load(console.INDEX).body.decode()
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in console.CSP
    assert "<style" not in page
    assert re.search(r"\s(?:style|on\w+)=", page) is None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_no_script_makes_markup_or_code_from_text(script: Path) -> None:
    """Text from users is only ever inserted as text."""
    text = script.read_text()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert forbidden not in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_button_that_is_busy_keeps_the_focus(script: Path) -> None:
    """A browser takes the focus from a disabled button, so keyboards would begin again at the top."""
    buttons = re.findall(r"<button[^>]*?(?<!aria-)disabled=\$\{([^}]*)\}", script.read_text())
    assert [value for value in buttons if "busy" in value] == []


def test_the_policy_allows_only_this_host() -> None:
    """No source but the gateway itself, no eval, nothing inline without its digest."""
    assert "'unsafe" not in console.CSP
    assert "http" not in console.CSP
    assert "default-src 'none'" in console.CSP
    assert console.HEADERS["Content-Security-Policy"] == console.CSP


def test_vendored_files_are_what_the_note_says() -> None:
    """Every vendored module has the checksum next to its name."""
    note = (FOLDER / "vendor" / "VENDORED.md").read_text()
    for path in (FOLDER / "vendor").glob("*.mjs"):
        assert f"`{path.name}`" in note
        assert hashlib.sha256(path.read_bytes()).hexdigest() in note


def test_a_class_has_one_style_for_all_pages_or_one_for_each() -> None:
    """A class with a rule of its own in one stylesheet gets no further style in another by its place.

    Otherwise an element of one page has the style of an element of another that it has no relation to.
    """
    sheets = {path.name: _selectors(path) for path in (FOLDER / "styles").glob("*.css")}
    owners = {
        found[1]: name
        for name, selectors in sheets.items()
        if name not in FOR_ALL_PAGES
        for one in selectors
        if (found := re.fullmatch(r"\.([\w-]+)", one))
    }
    foreign = {
        (owners[used], f"{name}: {one}")
        for name, selectors in sheets.items()
        for one in selectors
        for used in re.findall(r" [^ ]*?\.([\w-]+)", one)
        if used in owners and name not in {owners[used], "print.css"} and used not in SHARED_CLASSES
    }
    assert owners
    assert not foreign


def _selectors(path: Path) -> list[str]:
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    return [one.strip() for group in re.findall(r"([^{}]+)\{", text) for one in group.split(",")]
