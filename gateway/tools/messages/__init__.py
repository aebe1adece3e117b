"""Tools that send messages to other places, and that change or delete those that the agent sent."""
