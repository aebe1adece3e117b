"""Send to Telegram: rendering, drafts, uploads and reactions."""
