"""Chaos: turns through a gateway that is killed again and again, and the count of what came of them."""
