"""A delivery's life: planned with the state that caused it, attempted by a worker, retried, dead-lettered."""
