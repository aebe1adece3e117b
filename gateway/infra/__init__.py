"""Dependencies of a process: data directory, database, NATS, snapshots, presence of replicas."""
