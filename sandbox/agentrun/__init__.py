"""Sandboxes at Alibaba Cloud AgentRun; see docs/guide/sandboxes/agentrun.md."""

from sandbox.agentrun.manifest import plugin

__all__ = ["plugin"]
