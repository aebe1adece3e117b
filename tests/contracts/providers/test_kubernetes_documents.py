"""deploy/kubernetes and docs/guide/sandboxes/kubernetes.md: they say what the provider needs and has."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from sandbox.kubernetes.capabilities import CONTROLLER_ROLE, NAMESPACE_ROLE, ROLE
from sandbox.kubernetes.settings import KubernetesSettings

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
PAGE = ROOT / "docs" / "guide" / "sandboxes" / "kubernetes.md"


def _granted(file: str) -> set[tuple[str, str, str]]:
    """Return what the role of a manifest allows: group, resource, verb."""
    objects = yaml.safe_load_all((MANIFESTS / file).read_text())
    (role,) = (one for one in objects if one["kind"] in {"Role", "ClusterRole"})
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("file", ["role.yaml", "role-per-account.yaml"])
def test_a_role_allows_what_is_needed_and_no_more(file: str) -> None:
    """The role of each manifest is the one that `doctor` checks."""
    needed = [*ROLE, *CONTROLLER_ROLE, *(NAMESPACE_ROLE if "account" in file else ())]
    assert _granted(file) == {(group, resource, verb) for group, resource, verbs in needed for verb in verbs}


def test_every_setting_is_on_the_page() -> None:
    """A setting that the page does not name cannot be found."""
    text = PAGE.read_text()
    assert [name for name in KubernetesSettings.model_fields if f"`{name}`" not in text] == []
