"""Background jobs: start, settle and reconcile."""
