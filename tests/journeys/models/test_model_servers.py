"""The model clients against servers that others wrote: llama.cpp, and LiteLLM's proxy for three protocols.

The model says letters at random and often calls tools, so no answer can be expected word for word. Set
MODEL_SERVERS_PYTHON to run these; `.ci/model-servers` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from agent_tools import BASH, RecordingTools, agent_spec, collect_steps, turn_input
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import AgentError, AgentEvent, Delta, Finished, MessageCompleted, ToolSpec, TurnInput
from model_servers import MODEL, PYTHON, litellm_proxy, llama_server

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason="wants MODEL_SERVERS_PYTHON: run .ci/model-servers"),
]

CONTEXT_TOKENS = 4096
ROUTES = [
    ("openai", "llama.cpp"),
    ("ollama", "llama.cpp"),
    ("anthropic", "llama.cpp"),
    ("openai", "LiteLLM"),
    ("anthropic", "LiteLLM"),
    ("google", "LiteLLM"),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run both servers; returns their URLs by name."""
    directory = tmp_path_factory.mktemp("models")
    with (
        llama_server(directory, context=CONTEXT_TOKENS) as (llama, _),
        litellm_proxy(directory, llama) as proxy,
    ):
        yield {"llama.cpp": llama, "LiteLLM": proxy}


class GivenTools(RecordingTools):
    """The tools that are given; the model calls them at random."""

    def __init__(self, *tools: ToolSpec) -> None:
        super().__init__()
        self._tools = tools

    def list(self) -> Sequence[ToolSpec]:
        """Return them."""
        return self._tools


def vendors_at(url: str) -> Vendors:
    """Return the addresses of all protocols at one server, without keys."""
    return Vendors(
        openai_base_url=f"{url}/v1",
        ollama_base_url=url,
        anthropic_base_url=url,
        google_base_url=url,
    )


async def run(url: str, given: TurnInput, tools: RecordingTools) -> list[AgentEvent]:
    """Return the events of a turn of the model at a URL."""
    async with open_model_agent(vendors_at(url)) as agent:
        return await collect_steps(agent, given, tools)


@pytest.mark.parametrize(("vendor", "name"), ROUTES)
async def test_a_streamed_answer_is_whole_and_counted(
    servers: dict[str, str], vendor: str, name: str
) -> None:
    """Turns are repeated until one has several pieces; they join to the output, and tokens were counted."""
    pieces = 0
    while pieces < 2:
        given = turn_input(agent_spec(models=(f"{vendor}:{MODEL}",)))
        *steps, end = await run(servers[name], given, GivenTools())
        assert isinstance(end, Finished)
        assert end.usage.input_tokens > 0
        assert end.usage.output_tokens > 0
        assert end.output == "".join(step.text for step in steps if isinstance(step, MessageCompleted))
        deltas = [step.text for step in steps if isinstance(step, Delta)]
        assert not deltas or "".join(deltas) in end.output
        pieces = len(deltas)


@pytest.mark.parametrize(("vendor", "name"), [route for route in ROUTES if route[0] != "google"])
async def test_tools_are_called_and_their_results_read(
    servers: dict[str, str], vendor: str, name: str
) -> None:
    """The first response must call bash; each call has the arguments of the schema, and the turn goes on.

    LiteLLM drops the schemas that Google's library sends.
    """
    tools = GivenTools(BASH)
    given = turn_input(
        agent_spec(models=(f"{vendor}:{MODEL}",)), required_tool="bash", client_tools=frozenset({"bash"})
    )
    end = (await run(servers[name], given, tools))[-1]
    assert isinstance(end, Finished)
    commands = [args for tool, args in tools.executed if tool == "bash"]
    assert commands
    assert end.usage.requests > 1
    assert all(isinstance(args["command"], str) for args in commands)


@pytest.mark.parametrize(("vendor", "name"), ROUTES)
async def test_a_message_beyond_the_context_is_named_as_such(
    servers: dict[str, str], vendor: str, name: str
) -> None:
    """The error says that the conversation is too long, whichever words the server has for it."""
    given = turn_input(agent_spec(models=(f"{vendor}:{MODEL}",)), text="word " * CONTEXT_TOKENS)
    with pytest.raises(AgentError, match="the conversation is too long") as caught:
        await run(servers[name], given, RecordingTools())
    assert not caught.value.retryable


@pytest.mark.parametrize("vendor", ["openai", "ollama", "anthropic"])
async def test_a_server_that_is_gone_is_tried_again_later(
    tmp_path_factory: pytest.TempPathFactory, vendor: str
) -> None:
    """The error of a server that was killed is one that another attempt may mend."""
    with llama_server(tmp_path_factory.mktemp("gone"), context=CONTEXT_TOKENS) as (url, process):
        process.kill()
        process.wait()
        given = turn_input(agent_spec(models=(f"{vendor}:{MODEL}",)))
        with pytest.raises(AgentError) as caught:
            await run(url, given, RecordingTools())
    assert caught.value.retryable
