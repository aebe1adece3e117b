"""The structure of the repository: rooms, names and cycles, which no linter checks."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from source_trees import PACKAGES, ROOT, Source, sources, tracked

MAX_ROOT_MODULES = 8
ROOM_SIZES = range(4, 17)
SMALL_ROOMS = {
    "gateway/console": "static files with one module that serves them",
    "gateway/migrations/versions": "one module a revision",
    "sandbox/network": "the packet filter, which the providers host and docker share",
    "channels/github/send": "a sender on shared parts of channels/inbox",
    "channels/inbox/simulator": "the part that simulators share",
    "channels/pancake/receive": "a codec, a feed and a receiver on shared parts of channels/inbox",
    "channels/pancake/send": "a sender on shared parts of channels/inbox",
    "channels/pancake/simulator": "one module is the whole API",
    "channels/zalo/receive": "a codec and a receiver on shared parts of channels/inbox",
    "channels/zalo/send": "a sender on shared parts of channels/inbox",
    "channels/zalo/simulator": "one module drives both of Zalo's platforms",
    "sandbox/exec/scripts": "shell programs and one Python program",
}
PARALLEL = re.compile(
    r"channels/(discord|github|pancake|slack|telegram|zalo)/"
    r"|sandbox/(agentrun|aws_lambda|daytona|docker|e2b|host|kubernetes)/"
)
"""Adapters of one port: they may use one class name for the same part."""

PAYLOADS = re.compile(r"channels/(\w+/payloads|message)\.py")
"""Payloads of platforms keep the platform's names, which the port's own messages may share."""

OLD_WORDS = """
anew brought conductor depot desk doorkeeper doubt errand errands gatekeeper
heard hears hushed judgement lanes meanwhile nobody obey obeyed obeys
pencil performers purse shelf somebody stands stranger strangers surroundings suspicion
switchboard tells told trouble untold verdict verdicts weather whisper whoever
workbench yard
"""
"""Words of an earlier private vocabulary, as parts of identifiers, test names and file names."""

PERSONIFYING_WORDS = "knew know knows someone stand tell"
"""Further words that docstrings and comments of tests do not use: they describe programs as people."""


def product() -> Iterator[Source]:
    """Return the modules of the packages."""
    return sources(*PACKAGES)


def test_a_package_has_few_modules_at_its_root() -> None:
    """A reader sees rooms first."""
    counts: dict[str, int] = defaultdict(int)
    for source in product():
        if len(source.parts) == 2 and source.parts[1] != "__init__.py":
            counts[source.parts[0]] += 1
    assert all(count <= MAX_ROOT_MODULES for count in counts.values()), counts


def test_a_room_has_four_to_sixteen_modules() -> None:
    """A smaller room belongs to another one, a larger one is divided; exceptions are listed and needed."""
    rooms = _rooms()
    parents = {room for room in rooms if any(other.startswith(f"{room}/") for other in rooms)}
    odd = {room: count for room, count in rooms.items() if count not in ROOM_SIZES}
    assert not {
        room: count
        for room, count in odd.items()
        if room not in SMALL_ROOMS and (room not in parents or count > max(ROOM_SIZES))
    }
    assert not SMALL_ROOMS.keys() - odd.keys(), "these rooms need no exception"


def _rooms() -> dict[str, int]:
    """Return how many modules each folder of a package has."""
    rooms: dict[str, int] = defaultdict(int)
    for source in product():
        folder = source.name.rpartition("/")[0]
        if "/" in folder:
            rooms[folder] += source.parts[-1] != "__init__.py"
    return rooms


def test_a_package_says_what_it_is_for() -> None:
    """The `__init__.py` of each folder has a docstring."""
    packages = [source for source in product() if source.parts[-1] == "__init__.py"]
    assert packages
    assert not [source.name for source in packages if not ast.get_docstring(source.tree)]


def test_architecture_names_each_folder() -> None:
    """ARCHITECTURE.md says what each folder of a package is for; the halves of adapters share their rows."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    halves = re.compile(r"channels/[a-z]+/(receive|send|simulator)(/|$)")
    folders = [folder for folder in _rooms() if not halves.match(folder)]
    assert folders
    assert not [folder for folder in folders if f"`{folder}/`" not in text]


def test_names_of_test_files_are_unique() -> None:
    """A name that pytest prints, or a rule lists, means one file."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources("tests", "examples"):
        if source.parts[-1].startswith("test_"):
            places[source.parts[-1]].append(source.name)
    assert places
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_files_import_each_other() -> None:
    """There is no cycle of imports, late and type-only ones included."""
    edges = _imports()
    finished: set[str] = set()
    for start in edges:
        _refuse_cycles(start, edges, finished, ())


def _refuse_cycles(
    module: str, edges: dict[str, set[str]], finished: set[str], path: tuple[str, ...]
) -> None:
    assert module not in path, " → ".join([*path[path.index(module) :], module])
    if module in finished:
        return
    for target in sorted(edges.get(module, ())):
        _refuse_cycles(target, edges, finished, (*path, module))
    finished.add(module)


def _imports() -> dict[str, set[str]]:
    modules = {source.name[:-3].replace("/", ".").removesuffix(".__init__"): source for source in product()}
    edges: dict[str, set[str]] = {module: set() for module in modules}
    for module, source in modules.items():
        targets = [alias.name for node in source.nodes(ast.Import) for alias in node.names]
        for node in source.nodes(ast.ImportFrom):
            if node.module:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                targets += [one if one in modules else node.module for one in below]
        edges[module].update(one for one in targets if one in modules and one != module)
    return edges


def test_a_class_name_is_used_once() -> None:
    """A name is shared only by parallel adapters, or by platforms' payloads and the port's messages."""
    places: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(source.name)
    shared = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert shared
    assert not {name: found for name, found in shared.items() if not _is_parallel(found)}


def _is_parallel(places: list[str]) -> bool:
    return any(all(kind.match(place) for place in places) for kind in (PARALLEL, PAYLOADS))


def test_no_identifier_uses_the_old_vocabulary() -> None:
    """Names are the standard terms of the field, in tests, benchmarks, scripts and examples too."""
    old = set(OLD_WORDS.split())
    found = sorted(
        f"{source.name}: {identifier}"
        for source in sources()
        for identifier in {*source.parts, *_identifiers(source)}
        if old & set(_words(identifier))
    )
    assert not found


def _words(identifier: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)]


def _identifiers(source: Source) -> Iterator[str]:
    yield from (node.name for node in source.nodes(ast.ClassDef))
    yield from (node.name for node in source.nodes(ast.FunctionDef))
    yield from (node.name for node in source.nodes(ast.AsyncFunctionDef))
    yield from (node.arg for node in source.nodes(ast.arg))
    yield from (node.id for node in source.nodes(ast.Name))
    yield from (node.attr for node in source.nodes(ast.Attribute))
    yield from (node.arg for node in source.nodes(ast.keyword) if node.arg)


def test_docstrings_and_comments_of_tests_use_plain_words() -> None:
    """What a test checks is described without the old vocabulary and without words for people."""
    found = [
        f"{source.name}: {text.strip()}"
        for source in sources("tests", "examples")
        for text in _unclear_texts(source)
    ]
    assert not found


def test_unclear_words_are_found() -> None:
    """Docstrings of all kinds and comments count; strings that are values and quoted code do not."""
    text = (
        '"""Nobody `knows`."""\nA = "told"\n"""A is told."""\n'
        'def f():\n    """A stand-in for `nobody`."""\n    return 1  # whoever asks\n'
    )
    found = list(_unclear_texts(Source("tests/a.py", text, ast.parse(text))))
    assert found == ["Nobody `knows`.", "A is told.", "# whoever asks"]


def _unclear_texts(source: Source) -> Iterator[str]:
    """Yield the docstrings and comments with an old or personifying word outside of quoted code."""
    unclear = {*OLD_WORDS.split(), *PERSONIFYING_WORDS.split()}

    def is_unclear(text: str) -> bool:
        prose = re.sub(r"`[^`]*`", "", text.lower())
        return not unclear.isdisjoint(re.findall(r"[a-z]+(?:-[a-z]+)*", prose))

    if not is_unclear(source.text.replace("`", " ")):
        return
    statements = (node.value for node in source.nodes(ast.Expr) if isinstance(node.value, ast.Constant))
    for value in sorted(statements, key=lambda value: value.lineno):
        if isinstance(value.value, str) and is_unclear(value.value):
            yield value.value
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and is_unclear(token.string):
            yield token.string


def test_architecture_names_functions_that_exist() -> None:
    """A path in ARCHITECTURE.md with a name in brackets behind it defines that name."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([a-z_/0-9]+\.py)`\s+\(`([A-Za-z_.]+)`\)", text)
    trees = {source.name: source.tree for source in sources()}
    missing = [
        f"{path} {dotted}" for path, dotted in named if path not in trees or not _defines(trees[path], dotted)
    ]
    assert named
    assert not missing


def _defines(tree: ast.Module, dotted: str) -> bool:
    body: list[ast.stmt] = tree.body
    for part in dotted.removesuffix("()").split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def test_no_text_names_an_installation_that_fails() -> None:
    """Dovecote is on no package index, so no error, comment or page says `pip install 'dovecote[...]'`."""
    wrong = re.compile(r"pip install '?dovecote\b")
    texts = [path for path in tracked() if path.suffix in {".py", ".md"} and path != Path(__file__)]
    assert texts
    assert not [path for path in texts if wrong.search(path.read_text())]


def test_pages_for_users_install_with_pip() -> None:
    """The first page leaves pip in `.venv` and no uv, so pages for users, and errors, use pip."""
    pages = [path for path in tracked() if (ROOT / "docs" / "guide") in path.parents]
    code = [path for path in tracked() if path.suffix == ".py" and "tests" not in path.parts]
    assert len(pages) > 1
    found = [path.name for path in (*pages, *code) if "-m uv pip install" in path.read_text()]
    assert found == ["site.py"], "scripts/site.py is for maintainers"
    assert "uv venv --seed" in (ROOT / "README.md").read_text(), (
        "pip is in an environment that uv makes only then"
    )


def test_tests_destroy_their_own_sandboxes_only() -> None:
    """Tests share an engine, so what a test lists to destroy it lists by its own label."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        if "destroy(" in source.text
        for node in source.nodes(ast.For)
        if "destroy(" in ast.unparse(node) and ".list()" in ast.unparse(node.iter)
    ]
    assert not found


def test_pages_are_loaded_by_the_driver_only() -> None:
    """A page is asked for again when an address of the machine changed, so tests call `load`."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        if not source.name.endswith("console_driver.py") and "playwright" in source.text
        for node in source.nodes(ast.Call)
        if isinstance(node.func, ast.Attribute)
        and (node.func.attr == "goto" or ast.unparse(node.func).endswith("page.reload"))
    ]
    assert not found
