"""A new algorithm in one file: FedProx, which ties local training to the global model.

    node:      θ_i ← θ_i − η [∇L_i(θ_i) + μ(θ_i − θ)],  E times from θ
    platform:  θ⁺  = θ + Σ w_i (θ_i − θ) / Σ w_i          (inherited: the contract's default)

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. fedmeta has it as
`fedmeta.FedProx`, with mini-batches and learned step sizes; this is what it takes to write it.

Run this file, or use the class from the command line:

    fedmeta compare examples/new_algorithm.py:FedProx fedavg --data digits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import fedmeta
from fedmeta import Adaptation
from fedmeta.contract import (
    Algorithm,
    Contribution,
    Facts,
    NodeData,
    NodeState,
    Objective,
    Passes,
    PlatformState,
    Tree,
    displacement,
    require_positive,
    tree,
    union,
)


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal pull μ(θ_i − θ) on every local step."""

    name: ClassVar[str] = "own-fedprox"

    step_size: float = 0.1
    local_steps: int = 5
    pull: float = 0.1
    inner: Adaptation = Adaptation()

    def __post_init__(self) -> None:
        require_positive("step_size", self.step_size)
        require_positive("pull", self.pull)

    @property
    def passes(self) -> Passes:
        """E gradient passes over all samples."""
        return Passes(self.local_steps, self.local_steps)

    def adaptation(self, state: PlatformState) -> Adaptation:
        """How a target adapts."""
        return self.inner

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """E local steps on the loss plus (μ/2)‖θ_i − θ‖²."""
        samples = union(data)
        local, losses = theta, []
        for _ in range(self.local_steps):
            gradient, loss = objective.gradient(local, samples, facts.key)
            losses.append(loss)
            pulled = tree.combine(1.0, gradient, self.pull, tree.subtract(local, theta))
            local = tree.combine(1.0, local, -self.step_size, pulled)
        return displacement(theta, local, facts, {"local_loss": losses[0]}), node


def main() -> None:
    federation = fedmeta.load(fedmeta.DataSettings("digits", nodes=30), seed=0)
    run = fedmeta.train(
        federation,
        fedmeta.ModelSettings("mlp"),
        FedProx(),
        fedmeta.TrainingSettings(rounds=30),
    )
    for steps, row in run.summary["target_metric"].items():
        print(f"after {steps} adaptation steps: {100 * row['mean']:.1f} % of the target's samples")


if __name__ == "__main__":
    main()
