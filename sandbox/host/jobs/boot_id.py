"""Which life of the machine this is: jobs of an earlier one are gone with it."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the kernel's boot id and when this pid namespace's first process started.

    A restarted container keeps the kernel's boot id, but its first process is a new one.
    """
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    fields = Path("/proc/1/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return f"{kernel}:{fields[19]}"
