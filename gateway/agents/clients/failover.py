"""A failover list: the models are asked in order until one begins to answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from gateway.agents.clients.errors import AllModelsFailed, ModelCallError
from gateway.agents.clients.messages import ChatMessage
from gateway.agents.clients.port import ModelClient, ModelQuery


class FailoverClient(ModelClient):
    """Several models as one.

    The next model is asked only until one begins to answer. After the first piece of text a failure is
    raised, because text that was streamed cannot be withdrawn.
    """

    def __init__(self, clients: Sequence[ModelClient]) -> None:
        self._clients = tuple(clients)

    async def ask(self, query: ModelQuery) -> AsyncGenerator[str | ChatMessage, None]:
        """Yield the answer of the first model that gives one; raises AllModelsFailed if none does."""
        failures: list[ModelCallError] = []
        for client in self._clients:
            has_begun = False
            try:
                async with aclosing(client.ask(query)) as reply:
                    async for item in reply:
                        has_begun = True
                        yield item
            except ModelCallError as error:
                if has_begun or not error.is_transient:
                    raise
                failures.append(error)
            else:
                return
        raise AllModelsFailed(failures)
