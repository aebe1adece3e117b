"""Sends comments and reactions to GitHub."""
