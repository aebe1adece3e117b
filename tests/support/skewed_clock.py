"""A wrong clock for a process that the zygote forked with `SKEW_SECONDS`: so many ahead, or behind."""

from __future__ import annotations

import os
import time

import time_machine

time_machine.travel(time.time() + float(os.environ["SKEW_SECONDS"]), tick=True).start()
