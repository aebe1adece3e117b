"""Sign-in to the console with an OpenID Connect provider: code flow with PKCE, state and nonce.

The result of a sign-in is an API key that expires, with the account and the scopes that the settings give to
the person's claims.
"""
