"""The Agent2Agent protocol (A2A)."""
