"""The UI message stream of the AI SDK, version 1."""
