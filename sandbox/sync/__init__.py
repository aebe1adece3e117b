"""The files of a workspace in two places: the workspace store, and a sandbox that cannot mount it."""
