"""What receivers share that keep connections of their own and read what was missed."""
