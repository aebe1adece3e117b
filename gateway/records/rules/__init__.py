"""Rules that a record must keep beyond its schema: addresses, connections, workspaces and ceilings."""
