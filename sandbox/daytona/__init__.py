"""Sandboxes at Daytona, the cloud or one's own installation; see docs/guide/sandboxes/daytona.md."""

from sandbox.daytona.manifest import plugin

__all__ = ["plugin"]
