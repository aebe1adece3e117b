"""Run commands in sandboxes through interchangeable providers."""
