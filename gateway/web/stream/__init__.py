"""WebSocket, server-sent events, and one turn read from its events."""
