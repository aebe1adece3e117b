"""Receives messages from Zalo, by polling or by posts."""
