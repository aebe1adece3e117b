"""Apply one-line faults to a copy of the tree and report which of them the tests notice.

    python -m bench.mutants                    every fault of bench/mutant_table.py
    python -m bench.mutants -k lease           those whose name contains a text
    python -m bench.mutants --list             print the faults and the tests that must fail

A fault is killed when its tests fail, and survives when they pass. The exit code is 1 if one survives. The
tests first run without a fault: if they fail in the copy as it is, they would report every fault as killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.mutant_table import MUTANTS, Mutant
from source_trees import ROOT, tracked

TIMEOUT_SECONDS = 900
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantRow:
    """What the tests of one mutant came to: `result` is killed, survived or error."""

    mutant: Mutant
    result: str
    seconds: float
    output: str


def copy_tree(target: Path) -> None:
    """Copy the repository's files to a directory: those that git knows, and new ones it does not ignore."""
    for path in tracked():
        copied = target / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied)


def apply_mutant(mutant: Mutant, text: str) -> str:
    """Return a file's text with the fault in it; raises ValueError unless `old` occurs exactly once."""
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise ValueError(f"{mutant.file}: {mutant.old!r} occurs {found} times, not once ({mutant.name})")
    return text.replace(mutant.old, mutant.new)


def failure_without_faults(tree: Path, mutants: Sequence[Mutant]) -> str:
    """Run the tests of mutants in the tree as it is; returns the output of the first that fail, or ""."""
    for tests in dict.fromkeys(mutant.tests for mutant in mutants):
        code, output = run_tests(tree, tests)
        if code:
            return output
    return ""


def run_mutant(tree: Path, mutant: Mutant) -> MutantRow:
    """Run a mutant's tests in the copied tree, and restore the file."""
    path = tree / mutant.file
    original = path.read_text()
    begun = time.perf_counter()
    path.write_text(apply_mutant(mutant, original))
    try:
        code, output = run_tests(tree, mutant.tests)
    finally:
        path.write_text(original)
    result = {0: "survived", TESTS_FAILED: "killed"}.get(code, "error")
    return MutantRow(mutant=mutant, result=result, seconds=time.perf_counter() - begun, output=output)


def run_tests(tree: Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run pytest in the copied tree; returns its exit code and output."""
    env = os.environ | {
        "PYTHONPATH": f"{tree}:{tree / 'tests' / 'support'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Run the chosen mutants; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-k", dest="text", default="", help="only mutants whose name contains this text")
    parser.add_argument("--list", action="store_true", help="print the mutants without running them")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if given.text in mutant.name]
    if given.list:
        for mutant in chosen:
            print(f"{mutant.name}\n    {mutant.file}\n    {' '.join(mutant.tests)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="dovecote-mutants-") as name:
        copy_tree(Path(name))
        if failure := failure_without_faults(Path(name), chosen):
            print(f"{failure}\nThese tests fail without a fault: repair them first.")
            return 1
        rows = [_run_and_print(Path(name), mutant) for mutant in chosen]
    killed = sum(row.result == "killed" for row in rows)
    print(f"{killed} of {len(rows)} killed")
    return 0 if killed == len(rows) else 1


def _run_and_print(tree: Path, mutant: Mutant) -> MutantRow:
    row = run_mutant(tree, mutant)
    print(f"{row.result:9} {row.seconds:5.0f} s  {mutant.name}", flush=True)
    if row.result == "error":
        print(row.output, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
