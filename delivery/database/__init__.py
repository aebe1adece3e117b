"""Transactions on SQLite and PostgreSQL, the tables, and the clock that replicas share."""
