"""The contract of a channel as a test suite: subclass `suite.ChannelContract` in the adapter's own tests.

Only tests import this package: it needs the extra `testing`. See docs/guide/writing-a-channel.md.
"""
