"""Agents: who performs a turn."""
