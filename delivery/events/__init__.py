"""Events, the outbox that records them, the relay that publishes them, and their replay for readers."""
