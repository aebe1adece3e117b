"""Acquire, reuse, suspend and delete sandboxes: reservations, locks, pool, reaper, services."""
