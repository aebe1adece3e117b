"""SQL of the gateway: functions take the connection first, so that callers compose transactions."""
