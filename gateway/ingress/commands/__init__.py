"""Commands of chats and clients: parsing them, executing them, and one module for each large group."""
