"""The public face over HTTP: routes, keys, bodies, problems, and the documents that describe them."""
