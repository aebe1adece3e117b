"""Where files are stored: blobs by digest, their records, and the quota of an account."""
