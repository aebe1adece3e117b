"""When calls need an approval, by the sandbox's permission mode or by the rule of a tool's config."""

from __future__ import annotations

from sandbox.config import SandboxConfig


def never_needs_approval(_config: SandboxConfig) -> bool:
    """Return False: the call only reads."""
    return False


def edits_need_approval(config: SandboxConfig) -> bool:
    """Return whether calls that change files or notes need one."""
    return config.permission_mode == "ask"


def commands_need_approval(config: SandboxConfig) -> bool:
    """Return whether calls that run commands, or have effects outside of the sandbox, need one."""
    return config.permission_mode in {"ask", "edit"}


def rule_needs_approval(rule: str, config: SandboxConfig) -> bool:
    """Return whether calls need one by a rule: always, never, or default, the rule of commands."""
    if rule == "default":
        return commands_need_approval(config)
    return rule == "always"
