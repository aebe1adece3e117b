"""Streams: the durable order of events, in memory for tests and on JetStream."""
