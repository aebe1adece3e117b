"""Event stream, leases, wake-ups and epochs on NATS JetStream, and in memory for tests."""
