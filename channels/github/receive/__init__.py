"""Receives GitHub's events by webhook or from its log of deliveries."""
