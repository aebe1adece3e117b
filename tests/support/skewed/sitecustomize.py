"""A wrong clock for a child process that finds this folder on its path: `SKEW_SECONDS` ahead, or behind."""

from __future__ import annotations

import os
import time

import time_machine

time_machine.travel(time.time() + float(os.environ["SKEW_SECONDS"]), tick=True).start()
