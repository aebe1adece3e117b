"""What adapters of message inboxes share: guarded calls, polling, posted updates, commands, simulators."""
