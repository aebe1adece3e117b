"""Sandboxes at Daytona, the cloud or one's own installation; docs/guide/sandboxes/daytona.md tells how."""

from sandbox.daytona.manifest import plugin

__all__ = ["plugin"]
