"""The durable copy of every workspace's files, in a local directory or a bucket, and its synchronisation."""
