"""Clients of language models: one request, answered by pieces of text and then the whole response."""
