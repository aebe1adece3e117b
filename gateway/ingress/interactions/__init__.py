"""Interactions of people with messages: buttons and reactions, and the status that the bot shows by them."""
