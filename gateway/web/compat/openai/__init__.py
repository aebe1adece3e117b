"""The API of OpenAI on top of turns: chat completions, responses and conversations."""
