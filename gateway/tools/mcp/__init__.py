"""The tools, resources and prompts of MCP servers."""
