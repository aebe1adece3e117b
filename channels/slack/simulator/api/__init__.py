"""The Web API of the simulated Slack: methods, scopes, rate limits, and the validation of arguments."""
