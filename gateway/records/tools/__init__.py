"""The tools of an agent record that call other servers."""
