"""Leases: exclusive rights that expire and are renewed, on NATS JetStream and in memory."""
