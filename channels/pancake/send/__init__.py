"""Sends messages, replies to comments and files through Pancake."""
