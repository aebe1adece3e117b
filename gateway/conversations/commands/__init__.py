"""What commands such as `/undo`, `/new`, `/model`, `/verbose` and `/compact` change of a conversation."""
