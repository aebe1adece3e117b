"""Commands, files and background jobs on any Linux instance that can run a shell program."""
