"""The commands that run on the gateway's machine: serve, settings, database, backup, checks."""
