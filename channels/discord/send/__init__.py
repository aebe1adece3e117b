"""Send to Discord: rendering, rate-limited calls and deferred replies."""
