"""Everything on NATS JetStream, and its in-memory double: event stream, leases, wake-ups, epochs."""
