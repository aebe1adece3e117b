"""The same turn run by the other vendors' models, against simulators of their APIs."""

from __future__ import annotations

import json

import pytest

from agent_tools import RecordingTools, agent_spec, approve, collect_steps, turn_input
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import ApprovalRequired, Delta, Finished
from vendor_servers import vendor_server


@pytest.mark.parametrize(
    ("model", "output"),
    [("anthropic:claude-loopback", "Anthropic says done."), ("google:gemini-loopback", "Google says done.")],
)
async def test_a_tool_call_is_approved_and_reported_by_another_vendor(model: str, output: str) -> None:
    """Call, pause, approval, result and text work alike with Anthropic and Google, each under its key."""
    async with vendor_server() as server:
        vendors = Vendors(
            anthropic_api_key="key-a",
            anthropic_base_url=server.base_url,
            google_api_key="key-g",
            google_base_url=server.base_url,
        )
        async with open_model_agent(vendors) as agent:
            record, tools = agent_spec(models=(model,)), RecordingTools(needs_approval_for=["ls"])
            paused = (await collect_steps(agent, turn_input(record), tools))[-1]
            assert isinstance(paused, ApprovalRequired)
            decided = turn_input(record, checkpoint=paused.state, decisions=approve(paused.calls[0].id))
            tools.approved.add(paused.calls[0].id)
            steps = await collect_steps(agent, decided, tools)
    end = steps[-1]
    assert isinstance(end, Finished)
    assert end.output == output == "".join(step.text for step in steps if isinstance(step, Delta))
    assert tools.executed == [("bash", {"command": "ls"})]
    assert server.keys == [f"key-{model[0]}"] * 2
    assert "done" in json.dumps(server.bodies[1])
