"""Send to chats: one sink, drafts that grow while a reply is generated, and the rate limits of a bot."""
