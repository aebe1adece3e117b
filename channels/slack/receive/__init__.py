"""Receive from Slack: Socket Mode, HTTP events and interactions."""
