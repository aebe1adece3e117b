"""Tools that send messages to other places, change or delete those that the agent sent, and react."""
