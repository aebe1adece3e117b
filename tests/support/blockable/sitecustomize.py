"""Let a test block the main thread of a gateway: SIGUSR1 makes it sleep for an hour."""

from __future__ import annotations

import signal
import time

signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
