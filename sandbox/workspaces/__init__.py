"""Where the durable copy of every workspace's files is: a directory of this machine, or a bucket."""
