"""Send to webhooks: endpoints, signatures, egress rules and the circuit breaker."""
