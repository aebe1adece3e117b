"""The built-in tools for commands, jobs, questions, notes, schedules and skills."""
