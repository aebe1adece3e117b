"""Schedules: turns and reminders that begin once at a time, at intervals, or by a cron expression."""
