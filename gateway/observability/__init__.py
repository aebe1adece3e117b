"""Metrics, logs, traces, readiness and fault points."""
