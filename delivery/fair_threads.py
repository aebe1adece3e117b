"""A thread pool whose threads are shared fairly by account, for calls that block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from delivery.fair_gate import current_account
from delivery.fair_scheduler import FairScheduler, PoolSize

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A function to call in a thread, and the future of its result."""

    function: Callable[[], Any]
    future: Future[Any]

    def execute(self) -> None:
        """Call the function, unless the caller has given up."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class FairThreadPool(ThreadPoolExecutor):
    """Runs functions in threads, for the account of the task that submits them.

    A running call cannot be stopped: it holds its thread until it has ended, also when its caller has given
    up. As the default executor of the event loop, it makes `asyncio.to_thread` fair.
    """

    def __init__(self, size: PoolSize, *, name: str) -> None:
        super().__init__(size.places, thread_name_prefix=name)
        self._scheduler = FairScheduler[_Call](size)
        self._scheduler_lock = threading.Lock()

    def submit(
        self,
        function: Callable[_Arguments, _Returned],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Returned]:
        """Call the function in a thread once it is its account's turn."""
        call = _Call(partial(function, *args, **kwargs), Future())
        with self._scheduler_lock:
            self._scheduler.add(current_account(), call)
        self._start_waiting()
        return call.future

    def _start_waiting(self) -> None:
        while True:
            with self._scheduler_lock:
                entry = self._scheduler.start_next()
            if entry is None:
                return
            try:
                super().submit(self._run, *entry)
            except RuntimeError:  # the pool is shut down
                entry[1].future.cancel()
                with self._scheduler_lock:
                    self._scheduler.finish(entry[0])

    def _run(self, account: str, call: _Call) -> None:
        try:
            call.execute()
        finally:
            with self._scheduler_lock:
                self._scheduler.finish(account)
            self._start_waiting()
