"""Tools that are not built in: those of MCP servers, of installed packages, and HTTP requests of records."""
