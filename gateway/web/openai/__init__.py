"""OpenAI's HTTP interface as a face of our own agents: whatever speaks to OpenAI can talk to one."""
