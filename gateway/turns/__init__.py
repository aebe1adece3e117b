"""Run turns: claim, attempt, cancel, and stream text as it is generated."""
