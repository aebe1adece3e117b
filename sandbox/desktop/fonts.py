"""Inside the sandbox: fonts for programs, also where /etc has no configuration of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_SYSTEM = Path("/etc/fonts/fonts.conf")
_CONFIGURATION = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir prefix="xdg">fonts</dir><cachedir>/tmp/fontconfig</cachedir>
</fontconfig>
"""


def font_variables(directory: Path) -> Mapping[str, str]:
    """Return the variables with which programs find fonts; a configuration is written where none is."""
    if _SYSTEM.exists():
        return {}
    written = directory / "fonts.conf"
    written.write_text(_CONFIGURATION, encoding="utf-8")
    return {"FONTCONFIG_FILE": str(written)}
