"""An example of an agent for Dovecote: a compiled graph of LangGraph whose nodes use the turn's tools."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

from gateway.agents.custom.turn import current_turn


def sort_mail(state: MessagesState) -> str:
    """Choose the node for the last message."""
    return "deliver" if str(state["messages"][-1].content).startswith("run: ") else "answer"


async def deliver(state: MessagesState) -> dict[str, Any]:
    """Run a command in the sandbox."""
    command = str(state["messages"][-1].content).removeprefix("run: ")
    result = await current_turn().call("bash", command=command)
    return {"messages": [{"role": "assistant", "content": result.content}]}


async def answer(state: MessagesState) -> dict[str, Any]:
    """Answer without a tool."""
    return {"messages": [{"role": "assistant", "content": f"You wrote: {state['messages'][-1].content}"}]}


builder = StateGraph(MessagesState)
builder.add_node(deliver)
builder.add_node(answer)
builder.add_conditional_edges(START, sort_mail, ["deliver", "answer"])
builder.add_edge("deliver", END)
builder.add_edge("answer", END)
graph = builder.compile()
