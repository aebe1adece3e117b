"""The tools that clone, show, commit and push Git repositories in the sandbox."""
