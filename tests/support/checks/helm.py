"""Helm's own engine on the chart, in a process of its own: the library brings Go's runtime with it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "dovecote"
_PROGRAM = """
import json, sys
import helm_python as helm

chart_path, cases = json.load(sys.stdin)
answers = []
with helm.Chart.load(chart_path) as chart:
    for values in cases:
        answer = {"files": {}, "error": "", "findings": []}
        try:
            chart.validate_schema(values)
            answer["files"] = chart.render(values, name="demo", namespace="prod")
            answer["findings"] = helm.lint(chart_path, values, strict=True)["messages"]
        except helm.HelmError as error:
            answer["error"] = str(error)
        answers.append(answer)
json.dump(answers, sys.stdout)
"""

_INSTALL = """
import json, sys
import helm_python as helm

given = json.load(sys.stdin)
with helm.Config(kubeconfig_path=given["kubeconfig"], namespace=given["namespace"]) as config:
    if given["values"] is None:
        config.uninstall(given["name"], ignore_not_found=True)
    else:
        config.install(given["chart"], given["name"], given["values"], namespace=given["namespace"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChart:
    """What Helm made of the chart with some values: objects, or an error."""

    objects: tuple[dict[str, Any], ...] = ()
    error: str = ""
    findings: tuple[dict[str, Any], ...] = field(default=())

    def kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind."""
        return [one for one in self.objects if one["kind"] == kind]


def render_chart(*cases: dict[str, Any]) -> list[RenderedChart]:
    """Return the chart as Helm renders it, once for each of these values."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps([str(CHART), cases]),
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    return [_rendered(answer) for answer in json.loads(done.stdout)]


def install_chart(kubeconfig: str, name: str, namespace: str, values: dict[str, Any] | None) -> None:
    """Install the chart in a cluster, as `helm install` does; without values, uninstall it."""
    given = {"kubeconfig": kubeconfig, "name": name, "namespace": namespace, "values": values}
    done = subprocess.run(
        [sys.executable, "-c", _INSTALL],
        input=json.dumps({**given, "chart": str(CHART)}),
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def _rendered(answer: dict[str, Any]) -> RenderedChart:
    texts = [text for name, text in sorted(answer["files"].items()) if not name.endswith("NOTES.txt")]
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return RenderedChart(objects=tuple(objects), error=answer["error"], findings=tuple(answer["findings"]))
