"""The contract of a provider as a test suite: subclass `suite.ProviderContract` in the provider's own tests.

Only tests import this package: it needs the extra `testing`. See docs/guide/sandboxes/writing-a-provider.md.
"""
