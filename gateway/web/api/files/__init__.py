"""The HTTP API of files: those of workspaces, those of turns, and stored ones by links."""
