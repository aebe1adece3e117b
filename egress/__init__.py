"""Check outgoing connections where they are made: addresses, policy, URL types, guarded clients.

Below all adapters, so it also has the base of the models of settings, records and requests.
"""
