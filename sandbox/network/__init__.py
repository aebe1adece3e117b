"""The packet filter of sandboxes whose network is open."""
