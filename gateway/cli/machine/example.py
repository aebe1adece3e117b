"""The commented settings file that `dovecote init` writes."""

from __future__ import annotations

EXAMPLE = """# Settings of Dovecote. A flag wins over a DOVECOTE_* variable, that over .env, that over this.
# `dovecote config check` reports problems; `dovecote config schema` lists every setting.

# host = "127.0.0.1"
# port = 8080
# public_url = "https://bots.example.org"     # the URL for platforms and sandboxes
# data_dir = "/var/lib/dovecote"
# log_format = "json"

# Without these the gateway starts its own nats-server and keeps a SQLite file in the data directory.
# nats_url = "nats://user:password@127.0.0.1:4222"
# database_url = "postgresql://user:password@127.0.0.1/dovecote"

[agent]
model = "builtin:shell"     # or openai:NAME, anthropic:NAME, google:NAME, ollama:NAME, entry:NAME
# instructions = "You are a careful operator of this machine."
# base_url = "http://127.0.0.1:8000/v1"       # an OpenAI-compatible server
# fallback = ["anthropic:NAME"]
# model_choices = ["openai:OTHER"]           # what people may select with /model

[sandbox]
provider = "host"                             # commands run in namespaces of this machine

# [agents.coder]                              # a further agent; `dovecote apply` makes it without a restart
# model = "anthropic:NAME"
# sandbox = "default"

# [channels.telegram]
# token = "123456:ABC"                        # better: DOVECOTE_CHANNELS__TELEGRAM__TOKEN in .env
# mode = "polling"                            # or "webhook", with webhook_secret
# allow = ["pairing"]                         # unknown senders get a code; or user ids; or "*"
"""
