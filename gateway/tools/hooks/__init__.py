"""Rules before and after tool calls and turns: functions of installed packages, and HTTP requests."""
