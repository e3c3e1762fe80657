"""Chunks of nodes on worker threads of a CPU, one core each; a single chunk in the caller's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from fedmeta.engine.compiled.nodes_half import CompiledHalf
from fedmeta.engine.recording import Recorder

_AHEAD = 4  # chunks per thread handed out at a time


class ThreadMapping:
    """Recordings run side by side, plain calls alone.

    Plain calls have one core too: with another number of cores their last bits could differ. So has
    the caller's thread, which computes a single chunk: to hand over what is done in a millisecond
    would take as long again on a busy machine.

    Args:
        function: of the arguments of a chunk.
        workers: how many threads.
    """

    def __init__(self, function: Recorder | CompiledHalf, workers: int) -> None:
        self.function, self._workers = function, workers
        self.pool: ThreadPoolExecutor | None = None

    def __call__(
        self, arguments: Callable[[Tensor], tuple[Any, ...]], chunks: Sequence[Tensor]
    ) -> Iterator[Any]:
        """What the function returns for every chunk, in order."""
        if len(chunks) == 1:
            yield self.function(*arguments(chunks[0]))
            return
        pool = self._threads()
        queue: deque[Future[Any]] = deque()
        try:
            for rows in chunks:
                inputs = arguments(rows)
                ready = self.function.ready(*inputs)
                while queue and (not ready.concurrent or len(queue) >= _AHEAD * self._workers):
                    yield queue.popleft().result()
                queue.append(pool.submit(ready.call, *inputs))
                if not ready.concurrent:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            wait(queue)

    def together(self, call: Callable[[], None]) -> None:
        """Call a function in every thread, this one too, and wait for all of them.

        Those that have not begun when this thread has ended are not waited for.
        """
        pool = self._threads()
        others = [pool.submit(call) for _ in range(self._workers - 1)]
        try:
            call()
        finally:
            begun = [each for each in others if not each.cancel()]
            wait(begun)
        for each in begun:
            each.result()

    def _threads(self) -> ThreadPoolExecutor:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(
                self._workers, "fedmeta", initializer=torch.set_num_threads, initargs=(1,)
            )
        return self.pool
