"""The composition root: the modules that name concrete classes and connect them."""
