"""Agents: language models and the built-in shell."""
