"""The table of performance targets beside the raw limit of the same run, with CPU by layer."""
