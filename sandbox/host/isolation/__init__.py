"""Isolation on this host: namespaces, cgroups, rlimits and the root file system."""
