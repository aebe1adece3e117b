"""Receives messages and comments of a page from Pancake."""
