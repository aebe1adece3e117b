"""A storm: conflicting requests and chat messages at two replicas, and what must hold during and after it."""
