"""A network of your own: any `nn.Module` whose answer to a sample depends on that sample alone.

Run this file, or name the function on the command line:

    fedmeta train --data digits --model examples/own_model.py:network
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedmeta


class Residual(nn.Module):
    """Two layers beside a shortcut, with a norm that looks at one sample at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.layers(inputs)
        return result


def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for samples of a shape: what --model calls."""
    width = 32
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(torch.Size(shape).numel(), width),
        Residual(width),
        nn.Linear(width, outputs),  # the head, which adaptation moves
    )


def main() -> None:
    federation = fedmeta.load(fedmeta.DataSettings("digits", nodes=30), seed=0)
    model = network(federation.inputs.shape[1:], federation.task.outputs)
    run = fedmeta.train(
        federation, model, fedmeta.ADMMFedMeta(), fedmeta.TrainingSettings(rounds=40)
    )
    reached = run.summary["target_metric"]
    print(f"before adaptation {100 * reached['0']['mean']:.1f} % of the target's samples")
    print(f"after one step    {100 * reached['1']['mean']:.1f} %")


if __name__ == "__main__":
    main()
