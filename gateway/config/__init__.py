"""Settings: their sources, types and validation. The only code that reads the environment."""
