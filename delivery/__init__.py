"""Deliver results: events and their stream, routes, deliveries, and the sinks for chats and webhooks."""
