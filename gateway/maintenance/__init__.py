"""What runs on a schedule: the janitor, deletion, the sandbox reaper and workspace sync."""
