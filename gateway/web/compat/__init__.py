"""Other protocols on top of turns, each in a room of its own, and what they share."""
