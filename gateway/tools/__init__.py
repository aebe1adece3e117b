"""Tools that an agent can call in a turn."""
