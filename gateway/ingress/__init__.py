"""Updates from platforms: admission, rate limits, commands, approval replies, and the channel supervisor."""
