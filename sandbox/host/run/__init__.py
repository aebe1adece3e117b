"""Run one command on this host: launch, pipes, prewarmed namespaces."""
