"""What programs import to use a running gateway: `dovecote.client`."""
