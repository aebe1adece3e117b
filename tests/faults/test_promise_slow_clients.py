"""G7 and G16 at a small size: stuck readers and half-open requests (full size: `bench.slow_clients`)."""

from __future__ import annotations

from bench.slow_clients import half_open, high, slow_readers


async def test_g7_clients_that_read_nothing_affect_no_others() -> None:
    """Beside 200 stuck readers healthy ones wait but a moment, memory is bounded, the stuck are ended."""
    waits = await slow_readers(stuck=200, healthy=10, events=320)
    alone, crowded = waits.p99()
    assert crowded <= max(0.5, 20 * alone)
    assert waits.memory_growth < 64
    assert waits.closed_after < 20


async def test_g16_half_open_connections_affect_no_others() -> None:
    """Beside 200 requests that never end others are answered, and those connections are closed."""
    waits = await half_open(count=200, rate=20, seconds=2)
    assert high(waits.loaded, 0.95) <= max(0.5, 20 * high(waits.alone, 0.95))
    assert waits.closed_after < 15
