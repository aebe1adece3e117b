"""Attempt deliveries: claim the due ones of a destination, send them, and record the outcomes."""
