"""M4 and M8: rules of the source that signatures and addresses depend on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SECRET_NAME = re.compile(r"(^|_)(secret|token|signature|mac|hmac|password|bearer)$")


def _compared(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where something named like a secret is compared by == or != with a computed value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops):
            sides = [node.left, *node.comparators]
            constant = any(isinstance(side, ast.Constant) for side in sides)
            names = [
                side.attr if isinstance(side, ast.Attribute) else side.id
                for side in sides
                if isinstance(side, ast.Attribute | ast.Name)
            ]
            if not constant and any(_SECRET_NAME.search(name) for name in names):
                yield node.lineno


NOT_SECRET = {
    "gateway/store/accounts/encrypted_columns.py",  # SQL that compares an encrypted text with the one it read
}


def test_m4_secrets_are_compared_in_constant_time() -> None:
    """Nothing named secret, token, signature, password or MAC is compared by `==` or `!=`."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for top in ("gateway", "delivery", "channels", "sandbox")
        for path in sorted((ROOT / top).rglob("*.py"))
        if "simulator" not in path.parts and path.relative_to(ROOT).as_posix() not in NOT_SECRET
        for line in _compared(ast.parse(path.read_text()))
    ]
    assert found == []


def _settings_of_sessions(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "ClientSession":
            wanted = {one.arg or "": one.value for one in node.keywords}
            trust = wanted.get("trust_env")
            yield node.lineno, {"trust_env"} if isinstance(trust, ast.Constant) and trust.value else set()


def test_m8_no_session_trusts_the_environments_proxies() -> None:
    """No client that calls out takes a proxy from the environment."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for top in ("gateway", "delivery", "channels")
        for path in sorted((ROOT / top).rglob("*.py"))
        for line, options in _settings_of_sessions(ast.parse(path.read_text()))
        if options
    ]
    assert found == []
