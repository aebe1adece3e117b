"""`python -m channels.zalo.simulator [PORT]`: run a simulated Zalo until interrupted."""

from __future__ import annotations

import asyncio
import json
import sys

from channels.zalo.simulator import simulate


async def main(port: int) -> None:
    """Run on a port (0 selects a free one) and print channel settings for it."""
    async with simulate(port=port) as simulator:
        sys.stdout.write(json.dumps(simulator.settings()) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    except KeyboardInterrupt:
        sys.exit(0)
