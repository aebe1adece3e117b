"""Snapshots: what a sandbox held, kept outside of it, so that a new machine can go on with it."""
