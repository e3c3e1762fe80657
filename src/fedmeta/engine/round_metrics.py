"""The numbers of a round, on their way from the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


class RoundMetrics(Mapping[str, float]):
    """The numbers of a round. They leave the device on their own; the first look waits for them.

    Args:
        names: what they are.
        values: the numbers, on the host or on their way there, and last a 0 if θ is finite; with
            several cohorts a row for each.
        known: further numbers that were known before.
        arrival: when the values have arrived; None: they have.
    """

    def __init__(
        self,
        names: Sequence[str],
        values: Tensor,
        known: Mapping[str, float],
        arrival: torch.cuda.Event | None,
    ) -> None:
        self._names, self._values, self._known, self._arrival = names, values, known, arrival

    @classmethod
    def sent(cls, metrics: Mapping[str, Tensor], known: Mapping[str, float]) -> RoundMetrics:
        """Numbers as a round computes them, sent on their way without waiting for the device.

        Args:
            metrics: by name, and last whether θ is finite.
            known: further numbers.
        """
        values, arrival = torch.stack(list(metrics.values()), dim=-1), None
        if values.is_cuda:
            here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = here.copy_(values, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        return cls(list(metrics)[:-1], values, known, arrival)

    def of(self, repeat: int) -> RoundMetrics:
        """The numbers of one of several cohorts."""
        return RoundMetrics(self._names, self._values[repeat], self._known, self._arrival)

    @property
    def finite(self) -> bool:
        """Whether all numbers and the model's parameters are."""
        return bool(torch.isfinite(self._arrived()).all())

    def _arrived(self) -> Tensor:
        if self._arrival is not None:
            self._arrival.synchronize()
            self._arrival = None
        return self._values

    def _read(self) -> dict[str, float]:
        # The last value is not for people: it says whether θ is finite.
        values = self._arrived()[:-1].tolist()
        return {**self._known, **dict(zip(self._names, values, strict=True))}

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
