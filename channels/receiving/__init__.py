"""What receivers share: rooms to read later, read positions, repeated calls, descriptions, status."""
