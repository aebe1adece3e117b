"""Tools that show a screen of the sandbox: its browser and its display."""
