"""Chaos runs: turns through a gateway that is killed repeatedly, and the count of the results."""
