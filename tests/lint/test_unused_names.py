"""Every constant, function and class of a module is used somewhere: a name that is written once is dead."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from source_trees import EVERYTHING, Source, sources, tracked

TEXT_SUFFIXES = frozenset({"", ".json", ".md", ".toml", ".yaml", ".yml", ".sh", ".mjs", ".js", ".html"})
"""Files besides Python's that call code by its name: entry points, documents, scripts."""

CALLED_BY_NAME = re.compile(r"^(test_|Test|pytest_|__|do_)|^(upgrade|downgrade|revision|down_revision)$")
"""Names that pytest, Alembic, Python and `getattr` of a simulator look up."""


def defined_names(source: Source) -> Iterator[str]:
    """Yield the names that a module defines at its top, but those that a decorator registers."""
    for node in source.tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if not node.decorator_list:
                    yield node.name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_no_name_is_defined_and_never_used() -> None:
    """Whatever is written once in all files can be removed."""
    words: Counter[str] = Counter()
    for path in tracked():
        if path.suffix == ".py" or path.suffix in TEXT_SUFFIXES:
            words.update(re.findall(r"\w+", path.read_text(errors="replace")))
    dead = [
        f"{source.name}: {name}"
        for source in sources(*EVERYTHING)
        for name in defined_names(source)
        if words[name] == 1 and not CALLED_BY_NAME.search(name)
    ]
    assert dead == []
