"""Sandboxes at Daytona, in the cloud or self-hosted; see docs/guide/sandboxes/daytona.md."""

from sandbox.daytona.manifest import plugin

__all__ = ["plugin"]
