"""Which sandbox and workspace an agent works in, and how to open them."""
