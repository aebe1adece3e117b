"""Sandboxes: the plug-board of providers that run commands."""
