"""The way back: events, streams, routes, deliveries and sinks."""
