"""The command line with all commands. Heavy imports are inside the commands, so that `--help` is fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import typer
from typer.main import get_command

from gateway.cli.commands.account import (
    agents,
    list_audit,
    show_usage,
    skills,
    workspaces,
)
from gateway.cli.commands.accounts import accounts
from gateway.cli.commands.channels import channels, keys
from gateway.cli.commands.chat import acp, chat, tail
from gateway.cli.commands.conversations import conversations
from gateway.cli.commands.credentials import credentials
from gateway.cli.commands.files import files
from gateway.cli.commands.jobs import approvals, deliveries, jobs
from gateway.cli.commands.memories import memories, persons
from gateway.cli.commands.sandboxes import sandboxes
from gateway.cli.commands.schedules import schedules
from gateway.cli.commands.status import show_status
from gateway.cli.commands.triggers import triggers
from gateway.cli.commands.turns import trace, turns
from gateway.cli.commands.webhooks import webhooks
from gateway.cli.group import ABOUT, group, local, remote
from gateway.cli.machine.apply import apply
from gateway.cli.machine.backup import backup
from gateway.cli.machine.config import Version, config, version
from gateway.cli.machine.doctor import doctor, upgrade
from gateway.cli.machine.init import init
from gateway.cli.machine.logs import logs
from gateway.cli.machine.migrate import migrate
from gateway.cli.machine.secrets import secrets
from gateway.cli.machine.serve import serve

app: typer.Typer = group(ABOUT)


@app.callback()
def handle_options(*, _version: Version = False) -> None:
    """Handle the options that stand before a command."""


local(app, "serve", logs=False)(serve)
remote(app, "chat")(chat)
remote(app, "acp")(acp)
local(app, "doctor")(doctor)
local(app, "init")(init)
local(app, "apply")(apply)
local(app, "backup")(backup)
local(app, "logs", logs=False)(logs)
app.add_typer(migrate, name="migrate")
app.add_typer(upgrade, name="upgrade")
app.add_typer(config, name="config")
app.add_typer(secrets, name="secrets")
local(app, "version", logs=False)(version)
remote(app, "tail")(tail)
remote(app, "trace")(trace)
app.add_typer(conversations, name="conversations")
app.add_typer(turns, name="turns")
app.add_typer(jobs, name="jobs")
app.add_typer(approvals, name="approvals")
app.add_typer(schedules, name="schedules")
app.add_typer(triggers, name="triggers")
app.add_typer(memories, name="memories")
app.add_typer(persons, name="persons")
app.add_typer(deliveries, name="deliveries")
app.add_typer(webhooks, name="webhooks")
app.add_typer(channels, name="channels")
app.add_typer(agents, name="agents")
app.add_typer(sandboxes, name="sandboxes")
app.add_typer(workspaces, name="workspaces")
app.add_typer(files, name="files")
app.add_typer(skills, name="skills")
app.add_typer(credentials, name="credentials")
app.add_typer(keys, name="keys")
app.add_typer(accounts, name="accounts")
remote(app, "usage")(show_usage)
remote(app, "audit")(list_audit)
remote(app, "status")(show_status)


@cache
def command() -> Callable[..., object]:
    """Return the command line, built once in a process."""
    return get_command(app)
