"""Other protocols on top of turns: OpenAI's API and AG-UI."""
