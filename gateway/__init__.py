"""The gateway: composition, accounts, conversations, turns, jobs, tools, web and command line."""
