"""Deliveries: created with the change that caused them, attempted by a worker, retried, dead-lettered."""
