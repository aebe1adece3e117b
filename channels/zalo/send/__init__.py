"""Sends texts and pictures to Zalo."""
