"""Events, the outbox they are recorded in, the relay that publishes them, and replay for readers."""
