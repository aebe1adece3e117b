"""Every method of a port names the errors that it raises, or that it raises nothing."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

import pytest

from source_trees import PACKAGES, sources

PORTS = frozenset(
    {
        "channels/inbox/polling.py",
        "delivery/chat/shared_rate_limit.py",
        "gateway/agents/clients/reply.py",
        "gateway/files/storage/blob_store.py",
        "gateway/tools/hooks/answer.py",
        "gateway/tools/mcp/server.py",
        "sandbox/lifecycle/locks.py",
        "sandbox/lifecycle/reservations.py",
        "sandbox/workspaces/baselines.py",
        "sandbox/workspaces/replica.py",
    }
)
"""Modules that define a port beside other things; a module `port.py` is always one."""

NAMED = re.compile(
    r"\b[Rr]aises?\s+(?:(?:only|any|another|as|what|the methods of)\s+)*(?:nothing|`\w+`|[A-Z]\w+)"
)
"""What names an error: "raises X", "Raise X unless", "raises nothing", "raises as `method` does"."""

FOR_ALL = re.compile(r"\bEach method (?:raises|may raise) [A-Z]\w+")
"""What names the errors of all methods, in the docstring of a class."""

LISTED = re.compile(r"\b[Rr]aises? (?:only |any |also |another )?([A-Z][^.:;()]*)")
ERROR = re.compile(r"\b[A-Z]\w*[a-z]\w*\b")


def ports() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield each abstract class of the ports, with the name of its module."""
    for source in sources(*PACKAGES):
        if source.parts[-1] == "port.py" or source.name in PORTS:
            for node in source.nodes(ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                if bases & {"ABC", "Protocol"} and not node.name.startswith("_"):
                    yield source.name, node


def methods(port: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public methods of a port, those with a default included."""
    for node in port.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name == "__call__" or not node.name.startswith("_")
        ):
            yield node


def unnamed(port: ast.ClassDef) -> list[str]:
    """Return the methods of which neither their docstring nor that of the class names an error."""
    if FOR_ALL.search(prose(port)):
        return []
    return [f"{port.name}.{one.name}" for one in methods(port) if not NAMED.search(prose(one))]


def prose(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a docstring as one line."""
    return " ".join((ast.get_docstring(node) or "").split())


def test_every_method_of_a_port_names_what_it_raises() -> None:
    """A caller learns from the port alone which errors to expect."""
    assert not [f"{module}: {one}" for module, port in ports() for one in unnamed(port)]


def test_an_error_that_a_port_names_exists() -> None:
    """The names after "raises" are classes of the packages or of Python."""
    known = {node.name for source in sources(*PACKAGES) for node in source.nodes(ast.ClassDef)}
    known |= set(dir(builtins)) | {"CancelledError"}
    texts = [prose(node) for _, port in ports() for node in (port, *methods(port))]
    named = {name for text in texts for part in LISTED.findall(text) for name in ERROR.findall(part)}
    assert len(named) > 10
    assert not named - known


def test_the_listed_modules_define_ports() -> None:
    """Each module in the list still has an abstract class."""
    assert {module for module, _ in ports()} >= PORTS


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Return it; raises NotFound.", True),
        ("Raise LeaseLost unless it is held.", True),
        ("Send it, best effort: raises nothing.", True),
        ("Copy a file; raises as `rename` does.", True),
        ("Return a path.", False),
        ("Return what raises the limit.", False),
    ],
)
def test_a_sentence_that_names_an_error_is_recognised(docstring: str, names: bool) -> None:
    """A method without such a sentence is found."""
    method = f'    def get(self):\n        """{docstring}"""\n'
    port = ast.parse(f'class Port(Protocol):\n    """A port."""\n{method}').body[0]
    assert isinstance(port, ast.ClassDef)
    assert unnamed(port) == ([] if names else ["Port.get"])
