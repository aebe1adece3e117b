"""What a process depends on: data directory, database, NATS, snapshots, other replicas."""
