"""HTTP resources that an application works with."""
