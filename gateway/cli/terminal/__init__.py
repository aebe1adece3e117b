"""The terminal client behind `dovecote chat` and `dovecote tail`."""
