"""Conversations and their queues: submission, queue policy, notices, retry and approvals."""
