"""The command groups of `dovecote`, one module each."""
