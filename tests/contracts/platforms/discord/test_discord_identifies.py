"""Discord allows a thousand sessions a day, and those that it refuses count, in every opening of a bot."""

from __future__ import annotations

import pytest

from channels.discord import plugin
from channels.discord.simulator.run import simulate
from channels.errors import Unauthorized
from channels.receiving.session_pace import pace_for
from channels.testing.connections import UpdateRecorder
from channels.testing.memory_state import MemoryChannelState
from egress.guard import TRUSTED


@pytest.mark.parametrize("code", [4010, 4012, 4013, 4014])
async def test_a_refused_session_delays_those_of_the_next_opening(code: int) -> None:
    """The pace stays as long as the settings; a changed record has new settings and begins at once."""
    async with simulate() as simulator:
        simulator.sessions.fatal = code
        settings, changed = (plugin.settings(**simulator.settings()) for _ in range(2))
        async with plugin.open("chn_contract", settings, MemoryChannelState(), TRUSTED) as connection:
            with pytest.raises(Unauthorized, match=str(code)):
                await connection.receiver.run(
                    UpdateRecorder().accept, receiving=UpdateRecorder().record_status
                )
        assert (len(pace_for(settings).begun()), pace_for(changed).begun()) == (1, [])
        async with plugin.open("chn_contract", changed, MemoryChannelState(), TRUSTED) as connection:
            with pytest.raises(Unauthorized, match=str(code)):
                await connection.receiver.run(
                    UpdateRecorder().accept, receiving=UpdateRecorder().record_status
                )
        assert (len(pace_for(settings).begun()), len(pace_for(changed).begun())) == (1, 1)
