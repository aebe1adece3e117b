"""Write what is made from the code: docs/reference/cli.md from the commands, the table of settings in
docs/guide/configuration.md, and the profiles of system calls in deploy/kubernetes/seccomp.

.venv/bin/python -m scripts.reference
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.cli.app import command
from sandbox.docker.seccomp_profile import ARCHITECTURES, profile
from scripts import settings_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"
PROFILES = ROOT / "deploy" / "kubernetes" / "seccomp"
HEAD = """# Commands and options

This page is made from the code by `python -m scripts.reference`. [Command line](../guide/cli.md)
explains exit codes, and how commands find the gateway.

"""


def reference() -> str:
    """Return the page."""
    return HEAD + "\n".join(_sections(command(), "dovecote")).rstrip() + "\n"


def _sections(one: Any, path: str) -> Iterator[str]:
    """Yield the section of a command, or those of a group's commands in their order."""
    if subcommands := getattr(one, "commands", None):
        for name, inner in subcommands.items():
            yield from _sections(inner, f"{path} {name}")
        return
    arguments = [part for part in one.params if part.param_type_name == "argument"]
    options = [part for part in one.params if part.param_type_name == "option" and part.name != "help"]
    shown = " ".join(part.name.upper() if part.required else f"[{part.name.upper()}]" for part in arguments)
    yield f"## `{path}`\n"
    yield f"```text\n{path}{' ' + shown if shown else ''}{' [OPTIONS]' if options else ''}\n```\n"
    yield f"{_wrapped(one.help or '')}\n"
    if options:
        yield "| option | meaning |\n|---|---|"
        for option in options:
            names = ", ".join(f"`{name}`" for name in option.opts)
            yield f"| {names} | {_plain(option.help or '').replace('|', chr(92) + '|')} |"
        yield ""


def _wrapped(text: str) -> str:
    return textwrap.fill(_plain(text), 100, break_long_words=False, break_on_hyphens=False)


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def seccomp_file(machine: str) -> str:
    """Return the profile of a kind of machine as a file for the kubelet."""
    return json.dumps(json.loads(profile(machine)), indent=1) + "\n"


def main() -> int:
    """Write the pages."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(reference())
    settings_table.PAGE.write_text(settings_table.with_table(settings_table.PAGE.read_text()))
    PROFILES.mkdir(exist_ok=True)
    for machine in ARCHITECTURES:
        (PROFILES / f"{machine}.json").write_text(seccomp_file(machine))
    sys.stdout.write(f"{PAGE}\n{settings_table.PAGE}\n{PROFILES}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
