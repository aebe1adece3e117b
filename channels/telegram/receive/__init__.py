"""Receive from Telegram: polling, webhook, albums and attachments."""
