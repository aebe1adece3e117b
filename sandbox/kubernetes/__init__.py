"""Sandboxes as pods of a Kubernetes cluster; see docs/guide/sandboxes/kubernetes.md."""

from sandbox.kubernetes.manifest import plugin

__all__ = ["plugin"]
