"""What simulators of platforms share: a web server whose answers can fail as a platform's do."""

from __future__ import annotations

from channels.inbox.simulator.platform import SimulatedFault, SimulatedMessage, SimulatedPlatform

__all__ = ["SimulatedFault", "SimulatedMessage", "SimulatedPlatform"]
