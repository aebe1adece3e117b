"""Updates from platforms: admission, rate limit, commands, decisions, and the channels kept connected."""
