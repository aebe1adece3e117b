"""The checks of `dovecote doctor`."""
