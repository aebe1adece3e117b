"""The proxy through which sandboxes with a restricted network reach the hosts of their record."""
