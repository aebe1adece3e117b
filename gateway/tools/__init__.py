"""Tools: what an agent may do in a turn."""
