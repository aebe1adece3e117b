"""Identify the current boot: jobs of an earlier one have ended."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the kernel's boot id and the start time of this pid namespace's first process.

    A restarted container keeps the kernel's boot id, but its first process is a new one.
    """
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    fields = Path("/proc/1/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return f"{kernel}:{fields[19]}"
