"""The loopback cluster without the agent-sandbox controller: plain pods."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kubernetes_service import serve

if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), controller=False))
