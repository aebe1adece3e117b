"""API keys, encryption of secrets, key rotation and budgets of an account."""
