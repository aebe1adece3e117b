"""HTTP plumbing: typed routes, authentication, limits, problems, paging, idempotency."""
