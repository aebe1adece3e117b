"""The browser and the display of a sandbox: programs that run inside it, on its python3 alone.

They import the standard library and each other, and nothing else: `sandbox.lifecycle.screen_driver` copies
them into the sandbox and calls them.
"""
