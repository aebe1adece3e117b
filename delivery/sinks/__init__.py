"""Sinks: each delivers to one kind of route."""
