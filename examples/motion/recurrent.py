"""A recurrent network on the motion sensors: gated recurrent units adapt to a new person.

python examples/motion/recurrent.py --data hapt_windows.npz [--rounds 40]

Windows of 2.56 s as 32 steps of 6 channels (means of four readings), 24 of every person drawn by
the seed. Persons 26 to 30 take no part in training; each adapts to half of their windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import fedmeta

STEPS, EACH, HELD_OUT = 32, 24, tuple(map(str, range(26, 31)))


def people(file: Path, seed: int) -> fedmeta.Federation:
    with np.load(file) as stored:
        x, y, subject = stored["x"], stored["y"], stored["subject"]
        names = [str(name) for name in stored["class_names"]]
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(subject == who))[:EACH] for who in np.unique(subject)]
    rows = np.concatenate(chosen)
    steps = x[rows].reshape(len(rows), STEPS, -1, x.shape[2]).mean(2)
    labels = np.array(names)[y[rows]]
    return fedmeta.federate(steps, labels, subject[rows], targets=HELD_OUT, seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="hapt_windows.npz, see README.md")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    federation = people(given.data, given.seed)
    network = fedmeta.ModelSettings("gru", hidden=(32,))
    run = fedmeta.train(federation, network, rounds=given.rounds, seed=given.seed)
    for steps in (0, 1):
        print(f"accuracy of five new people after {steps} steps: {run.accuracy(steps):.1%}")


if __name__ == "__main__":
    main()
