"""Channel adapters: the plug-board of chat platforms."""
