"""Run one worker of a test run, forked from the process that has collected the tests.

pytest-xdist starts `python forked_worker.py SOCKET -u -c LINE` in place of `python -u -c LINE`. The forked
process runs this module too, and there LINE, the first line of execnet's protocol.
"""

from __future__ import annotations

import random
import sys

from forked_program import run_forked

if __name__ == "__main__":
    if sys.argv[1] == "-u":
        random.seed()  # each worker has inherited the same state
        exec(sys.argv[-1])
    else:
        sys.exit(run_forked(sys.argv[1], "forked_worker", sys.argv[2:]))
