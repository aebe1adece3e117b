"""Send to Slack: rendering, streams, uploads and reactions."""
