"""Sandboxes at E2B, or at any service that speaks E2B's API; docs/guide/sandboxes/e2b.md tells how to set it up."""

from sandbox.e2b.manifest import plugin

__all__ = ["plugin"]
