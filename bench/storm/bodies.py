"""The bodies of a storm's requests, with random choices of names, ids and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.storm.choices import Choices

Body = Callable[[Choices], Any]
"""Makes a body: bytes are sent as they are, everything else as JSON."""

COMMANDS = ("!echo x", "!sleep 0.3", "!&sleep 1", "!seq 1 3000")
MODEL = "openai:loopback"
SHELL = "builtin:shell"


def always(value: Any) -> Body:
    """Return the body that is always the same."""
    return lambda _: value


def one_of(*values: Any) -> Body:
    """Return a body that is one of these."""
    return lambda choices: choices.one_of(*values)


def word_as(field: str) -> Body:
    """Return a body with one field, whose text no other request has."""
    return lambda choices: {field: choices.word()}


def named(**config: Any) -> Body:
    """Return a new record with this configuration."""
    return lambda choices: {"name": choices.name(), "config": config}


def new_name(choices: Choices) -> Any:
    """Give a record one of the three names."""
    return {"name": choices.name()}


def agent(choices: Choices) -> Any:
    """Make an agent of a model or of commands, in one of the sandboxes and workspaces."""
    workspaces = choices.one_of([], [{"name": "a", "workspaceId": choices.name()}])
    sandbox = choices.one_of("working", choices.name())
    config = {"sandbox": sandbox, "workspaces": workspaces, "model": choices.one_of(MODEL, SHELL)}
    return {"name": choices.name(), "config": config}


def agent_change(choices: Choices) -> Any:
    """Change an agent's instructions, name, sandbox or model."""
    instructions = {"config": {"instructions": choices.word()}}
    sandbox = {"config": {"sandbox": choices.name()}}
    model = {"config": {"model": choices.one_of(MODEL, SHELL)}}
    return choices.one_of(instructions, new_name(choices), sandbox, model)


def sandbox(choices: Choices) -> Any:
    """Make a sandbox on the host, with and without questions before commands."""
    config = {"provider": "host", "permissionMode": choices.one_of("ask", "edit", "bypass")}
    return {"name": choices.name(), "config": config}


def credential(choices: Choices) -> Any:
    """Make a credential for a host."""
    shape = {"name": choices.name(), "host": "git.example.org", "kind": "header", "agents": ["default"]}
    return shape | {"secret": {"name": "X-Key", "value": "v"}}


def channel(choices: Choices) -> Any:
    """Make a channel whose platform does not answer."""
    settings = {"token": "123456:" + "A" * 35, "base_url": "http://127.0.0.1:9", "allow": ["*"]}
    return {"name": choices.name(), "kind": "telegram", "agent": choices.agent(), "settings": settings}


def turn(choices: Choices) -> Any:
    """Start a turn in a conversation that other requests use too."""
    return {"input": choices.one_of(*COMMANDS), "conversation": choices.conversation()}


def completion(choices: Choices) -> Any:
    """Ask for a chat completion of one of two people."""
    messages = [{"role": "user", "content": "!echo c"}]
    return {"model": choices.agent(), "messages": messages, "user": choices.one_of("u1", "u2")}


def response(choices: Choices) -> Any:
    """Ask for a response in the background, or in a conversation."""
    background = {"model": "default", "input": "!sleep 0.2", "background": True}
    in_conversation = {"model": choices.agent(), "input": "!echo r", "conversation": choices.id("conv")}
    return choices.one_of(background, in_conversation)


def a2a_message(choices: Choices) -> Any:
    """Send a message of another agent."""
    message = {"messageId": choices.word(), "role": "ROLE_USER", "parts": [{"text": "!echo a"}]}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}


def mcp_call(choices: Choices) -> Any:
    """Call a tool as an MCP client."""
    ask = {"name": "ask", "arguments": {"text": "!echo m", "conversation": choices.conversation(), "wait": 1}}
    status = {"name": "job_status", "arguments": {"id": choices.id("trn")}}
    search = {"name": "search", "arguments": {"query": "x"}}
    call = choices.one_of(ask, status, search)
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}


def ui_message(choices: Choices) -> Any:
    """Send a message of the AI SDK, in one of two chats."""
    message = {"id": choices.word(), "role": "user", "parts": [{"type": "text", "text": "!echo u"}]}
    return {"id": choices.one_of("chat1", "chat2"), "messages": [message]}


def agui_run(choices: Choices) -> Any:
    """Run an agent by AG-UI, in one of two threads."""
    message = {"id": choices.word(), "role": "user", "content": "!echo g"}
    run = {"threadId": choices.one_of("t1", "t2"), "runId": choices.word(), "messages": [message]}
    return run | {"tools": [], "context": [], "state": {}, "forwardedProps": {}}


def webhook(choices: Choices) -> Any:
    """Send every event to the receiver."""
    return webhook_change(choices) | {"events": ["*"]}


def webhook_change(choices: Choices) -> Any:
    """Send to another address of the receiver."""
    return {"url": f"{choices.receiver}/{choices.name()}"}


def schedule(choices: Choices) -> Any:
    """Run a command each minute in a conversation."""
    return {"conversation": choices.one_of("one", "two"), "text": "!echo s", "every": "PT1M"}


def trigger(choices: Choices) -> Any:
    """Start a turn when an address is called."""
    return {"agent": choices.agent(), "template": "!echo t", "conversation": "one"}


def memory(choices: Choices) -> Any:
    """Remember something for everybody, often something that is known."""
    return {"text": choices.one_of("likes tea", "likes rum", choices.word()), "scope": "account"}
