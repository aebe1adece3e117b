"""The Agent Client Protocol of editors, over standard input and output."""
