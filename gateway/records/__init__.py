"""Configuration records of an account: validated, references checked, secrets encrypted."""
