"""Background jobs on this host and their supervisor process."""
