"""Receive from Discord: the gateway connection, interactions and backfill after a gap."""
