"""The regular expressions of the product, read from its syntax trees and built as the product builds them."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from source_trees import PACKAGES, Source, sources

METHODS = frozenset({"match", "fullmatch", "search", "sub", "subn", "findall", "finditer", "split"})


@dataclass(frozen=True)
class Expression:
    """One `re.compile(…)`, or one call as `re.sub("…", …)`."""

    key: str
    """The file, and the name that is assigned or else the function; `#2` for its second expression."""

    module: str
    call: ast.Call
    methods: frozenset[str]
    """How the product applies it."""

    def build(self, names: Mapping[str, Any]) -> re.Pattern[str] | re.Pattern[bytes]:
        """Return the pattern; `names` are values of the local variables that it is built from."""
        positional = list(self.call.args)
        flags = [one.value for one in self.call.keywords if one.arg == "flags"]
        if ast.unparse(self.call.func) == "re.compile":
            flags += positional[1:2]
        expression = ast.Expression(
            ast.Call(ast.parse("re.compile", mode="eval").body, [positional[0], *flags], [])
        )
        code = compile(ast.fix_missing_locations(expression), self.key, "eval")
        namespace: dict[str, Any] = {"re": re, **names}
        if not namespace.keys() >= {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}:
            namespace = {**vars(importlib.import_module(self.module)), **names}
        built = eval(code, namespace)
        assert isinstance(built, re.Pattern)
        return built


def read_expressions() -> dict[str, Expression]:
    """Return each expression of the product by its key."""
    found = [one for source in sources(*PACKAGES) for one in expressions_of(source)]
    return {one.key: one for one in found}


def expressions_of(source: Source) -> Iterator[Expression]:
    """Yield the expressions of a file, in the order of its lines."""
    seen: Counter[str] = Counter()
    scopes = _scopes(source.tree)
    locals_ = {one.value: ast.unparse(one.targets[0]) for one in source.nodes(ast.Assign)}
    for call in sorted(source.nodes(ast.Call), key=lambda node: (node.lineno, node.col_offset)):
        name = ast.unparse(call.func)
        method = name.removeprefix("re.")
        if not name.startswith("re.") or method not in METHODS | {"compile"}:
            continue
        if method != "compile" and isinstance(call.args[0], ast.Name | ast.Attribute):
            continue  # a pattern that has a name is listed where it is assigned
        scope = scopes.get(call, "")
        seen[scope] += 1
        key = f"{source.name}::{scope}" + (f"#{seen[scope]}" if seen[scope] > 1 else "")
        methods = frozenset({method}) if method != "compile" else _uses(source, locals_.get(call, scope))
        yield Expression(key, _module(source), call, methods)


def _module(source: Source) -> str:
    return source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _scopes(tree: ast.Module) -> dict[ast.AST, str]:
    """Return for each node the name that its statement assigns in the module, or the function around it."""
    scopes: dict[ast.AST, str] = {}

    def enter(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{scope}.{child.name}".strip(".")
            elif not scope and isinstance(child, ast.Assign | ast.AnnAssign):
                target = child.targets[0] if isinstance(child, ast.Assign) else child.target
                inside = ast.unparse(target)
            scopes[child] = inside
            enter(child, inside)

    enter(tree, "")
    return scopes


def _uses(source: Source, name: str) -> frozenset[str]:
    """Return the methods with which a pattern is called, or all if a call goes through another name."""
    own = _methods_by_name(source)[name]
    if not name.startswith("_"):
        own = own.union(*(_methods_by_name(other)[name] for other in sources(*PACKAGES)))
    return frozenset(own) or METHODS


@cache
def _methods_by_name(source: Source) -> defaultdict[str, frozenset[str]]:
    found: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
    for call in source.nodes(ast.Call):
        holder, _, method = ast.unparse(call.func).rpartition(".")
        if method not in METHODS:
            continue
        if holder == "re" and call.args:
            holder = ast.unparse(call.args[0])
        found[holder.rpartition(".")[2]] |= {method}
    for node in source.nodes(ast.Attribute):
        if node.attr in METHODS:  # a method that is passed on, as to map()
            found[ast.unparse(node.value).rpartition(".")[2]] |= {node.attr}
    return found
