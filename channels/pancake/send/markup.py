"""Render CommonMark for Pancake: plain text, which all of its platforms show."""

from __future__ import annotations

from channels.inbox.plain import fit, render

__all__ = ["fit", "render"]
