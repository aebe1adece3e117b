"""HTTP resources that an operator or account owner sets up."""
