"""A new prior in one file: a Huber penalty, which lets a few parameters go far from θ_p.

    λ Σ_j h(θ_j − θ_p,j),   h(d) = d²/2 for |d| ≤ w,  w(|d| − w/2) beyond

Only the platform computes it. Run this file: the second task is learned without a prior, near the
first model by a squared distance, and near it by this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import fedmeta
from fedmeta.contract import Divergence, Regularizer, Tree, require_positive


@dataclass(frozen=True, eq=False)
class Huber(Divergence):
    """λ Σ h(θ − θ_p); `width` is where h stops being quadratic."""

    width: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("width", self.width)

    def value(self, theta: Tree) -> torch.Tensor:
        terms = []
        for name, prior in self.prior.items():
            far = (theta[name] - prior).abs()
            inside, outside = far.square() / 2, self.width * (far - self.width / 2)
            terms.append(torch.where(far <= self.width, inside, outside).sum())
        return self.strength * torch.stack(terms).sum()

    def gradient(self, theta: Tree) -> Tree:
        pull = {name: torch.zeros_like(leaf) for name, leaf in theta.items()}
        for name, prior in self.prior.items():
            pull[name] = self.strength * (theta[name] - prior).clamp(-self.width, self.width)
        return pull


def learned(classes: int, seed: int, prior: Regularizer | None) -> fedmeta.Run:
    """Digits on nodes of so many classes each, tied to an earlier model or free."""
    data = fedmeta.DataSettings("digits", nodes=12, classes_per_node=classes)
    start = None if prior is None else prior.prior
    algorithm = fedmeta.ADMMFedMeta(prior=prior)
    network = fedmeta.ModelSettings("mlp")
    return fedmeta.train(data, network, algorithm, rounds=20, seed=seed, start=start)


def main() -> None:
    """How far each goes from the first model, and what its targets reach."""
    theta_p = learned(2, 0, None).meta_model.theta
    priors: dict[str, Regularizer] = {
        "squared": fedmeta.SquaredEuclidean(0.1, theta_p),
        "huber": Huber(0.1, theta_p),
    }
    for name, prior in priors.items():
        run = learned(3, 1, prior)
        far = sum((leaf - theta_p[key]).abs().sum() for key, leaf in run.meta_model.theta.items())
        print(f"{name:8}  moved by {float(far):7.2f}  accuracy {run.accuracy():.3f}")


if __name__ == "__main__":
    main()
