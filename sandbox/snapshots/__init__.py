"""Snapshots: the saved files of a sandbox, from which a new instance continues."""
