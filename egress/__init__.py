"""Check outgoing connections where they are made: addresses, policy, URL types, guarded clients."""
