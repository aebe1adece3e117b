"""CommonMark: parsed into blocks for the renderers, and cut into messages."""
