"""Runs of commands as invocations of AWS Lambda functions; see docs/guide/sandboxes/lambda.md."""

from sandbox.aws_lambda.manifest import plugin

__all__ = ["plugin"]
