"""Tools that are not built in: of installed packages, of HTTP requests and OpenAPI documents in records."""
