"""AG-UI: runs of agents as streams of events."""
