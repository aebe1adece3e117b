"""The workspace store in a bucket: files, links and baselines as objects."""
