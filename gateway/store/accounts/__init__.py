"""SQL of accounts: keys, records, files of agents, audit log, usage."""
