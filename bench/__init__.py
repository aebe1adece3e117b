"""Measurements and proofs; they run the same real processes as the tests."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())
sys.path[:0] = [str(_ROOT / folder) for folder in _PROJECT["tool"]["pytest"]["ini_options"]["pythonpath"]]
