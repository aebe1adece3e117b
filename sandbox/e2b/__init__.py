"""Sandboxes at E2B, or at any service with E2B's API; see docs/guide/sandboxes/e2b.md."""

from sandbox.e2b.manifest import plugin

__all__ = ["plugin"]
