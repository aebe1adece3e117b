"""The sign-ins of people at MCP servers: links, tokens, and the tool that asks for one."""
