"""The model as files that adapt without PyTorch, and one held-out person's windows to try it on.

python examples/motion/person.py --data hapt_windows.npz --out build/motion
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from methods import fitted
from people import TARGETS, load_people
from run import ROOT, chosen

from fedmeta import export_c, export_onnx


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="hapt_windows.npz, see README.md")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=100, help="of the training [100]")
    parser.add_argument(
        "--out", type=Path, default=Path("build/motion"), help="folder of the files"
    )
    given = parser.parse_args()
    results = json.loads((ROOT / "results/motion.json").read_text("utf-8"))  # run.py makes them
    algorithm = chosen(results["trials"])["admm-fedmeta"]
    people = load_people(given.data, seed=0)
    model = fitted(people, algorithm, given.rounds, seed=0, device=given.device)
    given.out.mkdir(parents=True, exist_ok=True)
    export_onnx(model, given.out / "motion.onnx", adaptable=True)
    costs = export_c(model, given.out)
    person = people.node(f"person-{TARGETS[0]}")
    for name, rows in (("mine", person.support), ("later", person.query)):
        classes = np.array(people.task.class_names)[people.labels[rows]]
        np.savez(given.out / f"{name}.npz", x=people.inputs[rows], y=classes)
    print(f"{given.out}: motion.onnx, mine.npz ({len(person.support)} windows), later.npz")
    print("model.h, model.c:", *costs.lines, sep="\n")


if __name__ == "__main__":
    main()
