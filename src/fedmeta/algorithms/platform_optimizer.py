"""The platform's step: what every algorithm's platform does with the mean update of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmeta.algorithms import directions, step_search
from fedmeta.algorithms.algorithm import Metrics
from fedmeta.algorithms.directions import Direction
from fedmeta.algorithms.step_search import Search
from fedmeta.core import tree
from fedmeta.core.errors import require, require_choice, require_positive
from fedmeta.core.tree import Tree


@dataclass(frozen=True)
class PlatformOptimizer:
    """θ⁺ = θ + β·D(Δ), with Δ the mean update of the nodes and D a direction made of it.

    Δ is a mean displacement Σw_i(θ_i − θ)/Σw_i, or a mean negative gradient. With plain steps of
    length 1 this is federated averaging; with Adam, FedAdam; with Yogi, FedYogi; with orthogonal
    directions, the server half of FedMuon. Directions and their constants stand in `directions`.

    With step_size "auto" the length is found by accepting and rejecting rounds (`step_search`): a
    step is θ⁺ = θ + D/ρ with D as long as an orthogonal direction, so that 1/ρ is how far what a
    layer puts out moves, as a share of what goes in. After a rejected round θ returns to the last
    accepted one, and D is made of the update there alone.

    Args:
        direction: "plain", "momentum", "adam", "yogi" or "orthogonal".
        step_size: β > 0, or "auto".
        averaging: the model is an average of θ (with "auto" of those that were accepted), in which
            older ones fade by this factor 0 ≤ β < 1 from round to round; 0 is the last one alone.
        first_penalty: ρ of the first round under "auto".
        longest_step: the largest 1/ρ under "auto". Shorter steps learn slower and may generalise
            better: `fedmeta tune --grid server.longest_step=0.005,0.01,0.02` finds out.

    Example:
        >>> theta = {"a": torch.tensor([1.0, 2.0])}
        >>> rule = PlatformOptimizer("plain", 0.5)
        >>> update = {"a": torch.tensor([1.0, -1.0])}
        >>> rule.step(theta, rule.start(theta), update, None, torch.tensor(1.0))[0]
        {'a': tensor([1.5000, 1.5000])}

    Reference: Reddi et al., Adaptive Federated Optimization, ICLR 2021.
    """

    direction: Direction = "plain"
    step_size: float | Literal["auto"] = 1.0
    averaging: float = 0.0
    first_penalty: float = 1000.0
    longest_step: float = 0.01

    def __post_init__(self) -> None:
        require_choice("direction", self.direction, get_args(Direction))
        if isinstance(self.step_size, str):
            require_choice("step_size", self.step_size, ("auto",))
        else:
            require_positive("step_size", self.step_size)
        fades = 0 <= self.averaging < 1
        require(fades, "averaging", self.averaging, "a number from 0 to below 1")
        require_positive("first_penalty", self.first_penalty)
        require_positive("longest_step", self.longest_step)

    @classmethod
    def of(cls, given: PlatformOptimizer | str) -> PlatformOptimizer:
        """What a name stands for: plain averaging, or a direction with "auto" and averaging 0.9.

        "auto" is `AUTOMATIC`, the step that ADMM-FedMeta takes where nothing else is said.

        Example:
            >>> PlatformOptimizer.of("plain") == PlatformOptimizer()
            True
            >>> PlatformOptimizer.of("adam").step_size
            'auto'
        """
        if isinstance(given, PlatformOptimizer):
            return given
        if given == "auto":
            return AUTOMATIC
        require_choice("server", given, (*get_args(Direction), "auto"))
        if given == "plain":
            return cls()
        return cls(given, "auto", averaging=0.9)  # type: ignore[arg-type]  # it is a choice

    @property
    def needs_losses(self) -> bool:
        """To find the length."""
        return self.step_size == "auto"

    def start(self, theta: Tree) -> dict[str, Tree]:
        """What the platform remembers before the first round.

        Args:
            theta: θ¹.
        """
        moments, some = directions.start(self.direction, theta), next(iter(theta.values()))
        if self.step_size == "auto":
            return {
                "accepted": theta,
                "average": theta,
                "dual": tree.zeros_like(theta),
                **moments,
                "search": step_search.begin(self.first_penalty, some)._asdict(),
            }
        if self.averaging > 0:
            count = torch.zeros((), dtype=some.dtype, device=some.device)
            return {**moments, "average": theta, "averaged": {"count": count}}
        return moments

    def model(self, theta: Tree, memory: Mapping[str, Tree]) -> Tree:
        """The averaged θ; θ itself where there is none."""
        return memory.get("average", theta)

    def step(
        self,
        theta: Tree,
        memory: Mapping[str, Tree],
        descent: Tree,
        loss: Tensor | None,
        share: Tensor,
        extrapolated: Tree | None = None,
    ) -> tuple[Tree, dict[str, Tree], Metrics]:
        """The next θ.

        Args:
            theta: where the nodes were.
            memory: from `start` or the last round.
            descent: Δ; with "auto" in the unit of −∇F(θ), since it is held against losses.
            loss: F(θ); needed with "auto" alone.
            share: Σw_i over the nodes that were counted, 1 if all were.
            extrapolated: what the direction is made of, where that is not Δ.

        Returns:
            The next θ, the new memory, and numbers to log. With "auto" the "loss" is the last seen
            of the accepted θ or, after a second try, next to it.
        """
        new = descent if extrapolated is None else extrapolated
        if isinstance(self.step_size, str):
            assert loss is not None, "a search looks at losses"
            return self._searched_step(theta, memory, descent, new, loss, share)
        after = directions.remembered(self.direction, memory, new)
        moved = directions.along(self.direction, after, new, self.step_size)
        theta = tree.add(theta, moved)
        if self.averaging > 0:
            count = memory["averaged"]["count"] + 1
            after["average"] = self._averaged(memory["average"], theta, count)
            after["averaged"] = {"count": count}
        numbers = {
            "gradient_norm": tree.squared_norm(descent).sqrt(),
            "step_norm": tree.squared_norm(moved).sqrt(),
        }
        return theta, after, numbers

    def _searched_step(
        self,
        theta: Tree,
        memory: Mapping[str, Tree],
        descent: Tree,
        extrapolated: Tree,
        loss: Tensor,
        share: Tensor,
    ) -> tuple[Tree, dict[str, Tree], Metrics]:
        search = Search(**memory["search"])
        finite = tree.squared_norm(descent).isfinite()
        verdict = step_search.judged(search, loss, finite, share)

        def kept(a: Tree, b: Tree) -> Tree:
            return {name: torch.where(verdict.accepted, leaf, b[name]) for name, leaf in a.items()}

        place, descent = kept(theta, memory["accepted"]), kept(descent, memory["dual"])
        rounds = (search.rounds + verdict.accepted).clamp(min=1)
        one_more = directions.remembered(self.direction, memory, extrapolated)
        alone = directions.restarted(self.direction, descent, rounds)
        moments = {slot: kept(leaves, alone[slot]) for slot, leaves in one_more.items()}
        update = kept(extrapolated, descent)
        average = self._averaged(memory["average"], place, rounds, verdict.accepted)
        search = step_search.advanced(search, verdict, loss, self.longest_step)
        way = directions.along(self.direction, moments, update)
        way = directions.as_long_as_orthogonal(self.direction, way)
        moved = tree.scale(1 / search.penalty, way)
        promised = directions.promised(self.direction, descent, moved)
        numbers = {
            "loss": search.losses[0],
            "gradient_norm": tree.squared_norm(descent).sqrt(),
            "step_norm": tree.squared_norm(moved).sqrt(),
            "penalty": search.penalty,
            "rejected": 1 - verdict.accepted.to(loss.dtype),
        }
        after = {
            "accepted": place,
            "average": average,
            "dual": descent,
            **moments,
            "search": search._replace(promised=promised)._asdict(),
        }
        return tree.add(place, moved), after, numbers

    def _averaged(
        self, average: Tree, theta: Tree, count: Tensor, taken: Tensor | None = None
    ) -> Tree:
        """The average with one more θ: equal shares for the first few, then 1 − β for the new."""
        rate = (1 / count).clamp(min=1 - self.averaging)
        rate = rate if taken is None else torch.where(taken, rate, 0.0)
        return {name: torch.lerp(leaf, theta[name], rate) for name, leaf in average.items()}


AUTOMATIC = PlatformOptimizer("orthogonal", "auto", averaging=0.9)
"""The platform's step that needs no tuning; a run that predicts values makes it longer."""
