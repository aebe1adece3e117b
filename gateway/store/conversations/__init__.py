"""SQL of conversations: messages, files, pairings and channel state."""
