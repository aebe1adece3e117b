"""Workers of a test run are forked from one process that has imported the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is executed when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from run_at_import(child)


def asks_for_its_process(source: str) -> bool:
    """Return whether a module asks for the id of its process when it is imported."""
    called = (node.func for node in run_at_import(ast.parse(source)) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr == "getpid" for one in called)


def test_no_module_keeps_the_id_of_the_process_that_imported_it() -> None:
    """The id would be that of the common parent, so two workers would share a name."""
    found = [
        str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if asks_for_its_process(path.read_text())
    ]
    assert found == []


def test_the_rule_finds_what_it_forbids() -> None:
    """A constant and a default of a class are found; what a function does is not."""
    assert asks_for_its_process('import os\nNAME = f"job-{os.getpid()}"\n')
    assert asks_for_its_process("class A:\n    n = os.getpid()\n")
    assert not asks_for_its_process("def own():\n    return os.getpid()\n")
