"""Inputs that make no sense are refused and change nothing; the code itself is clean."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cli.calling import call, succeed
from export.c_device import CHECKED, FAST, Script, built, moving, needs_gcc
from export.exporting import meta_model, samples
from fedmeta import Adaptation, MetaModel, ModelSettings
from fedmeta.core.calibration import Calibration
from fedmeta.core.errors import MemoryBudgetError, ModelError, SettingError
from fedmeta.data.named_inputs import InputParts
from fedmeta.export.c import export_c
from fedmeta.export.c.chain import chain_of
from fedmeta.export.c.ranges import Ranges, node_extremes
from fedmeta.models.backbone import Cosine
from fedmeta.models.functional import functionalise
from fedmeta.models.networks import build

HEAD = Adaptation(0.3, scope="head")
SERIES = (ModelSettings("cnn", (4, 6)), (3, 17), 4)
COUNTED = Calibration(tuple(range(64)), tuple(number // 2 for number in range(64)))


def ranges(model: MetaModel, count: int = 50) -> Ranges:
    """What one node with some samples tells."""
    low, high = node_extremes(model, model.scaled(samples(model, count)[0])).tolist()
    return Ranges(tuple(low), tuple(high))


@needs_gcc
@pytest.mark.parametrize(
    ("rule", "kept", "int8"),
    [
        (HEAD, 0, False),
        (HEAD, 5, True),
        (Adaptation(0.1), 0, False),
        (Adaptation(4.0, scope="head", method="prototypes"), 0, False),
    ],
    ids=["head", "decides, int8", "all layers", "prototypes"],
)
def test_ten_thousand_calls(rule: Adaptation, kept: int, int8: bool, tmp_path: Path) -> None:
    model = replace(meta_model(*SERIES, rule), calibration=COUNTED)
    export_c(model, tmp_path, samples=kept, int8=ranges(model) if int8 else None)
    done = subprocess.run(
        built(tmp_path, model, CHECKED, "fuzz.c"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs_gcc
@pytest.mark.parametrize("kept", [0, 5])
def test_ten_thousand_calls_with_values(kept: int, tmp_path: Path) -> None:
    model = meta_model(ModelSettings("mlp", hidden=(5,)), (3,), 2, HEAD, "regression")
    export_c(model, tmp_path, samples=kept)
    done = subprocess.run(
        built(tmp_path, model, CHECKED, "fuzz.c"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs_gcc
def test_what_is_refused_is_told(tmp_path: Path) -> None:
    model = meta_model(*SERIES, HEAD)
    export_c(model, tmp_path, samples=2)
    script = Script(model, len(moving(model)))
    (one, two, three), labels = samples(model, 3)
    script.step()  # there is no sample
    script.decide()
    script.add(np.full_like(one, np.nan), 0)
    script.add(one, -1)
    script.add(one, 4)
    script.add(one, int(labels[0]))
    script.add(two, int(labels[1]))
    script.add(three, int(labels[2]))  # there is room for two
    script.predict(np.full_like(one, np.inf))
    script.predict(np.full_like(one, 3e38))
    script.load(np.full(len(moving(model)), np.nan))
    script.save()
    script.step()
    script.reset()
    script.save()
    found = script.run(built(tmp_path, model, CHECKED), tmp_path)
    assert found[0] == found[1][0] == -3
    assert found[2:8] == [-1, -2, -2, 0, 0, -4]
    assert [found[8][0], found[9][0], found[10]] == [-1, -5, -1]
    assert np.array_equal(found[11], moving(model))
    assert found[12] == 0
    assert np.array_equal(found[13], moving(model))


@needs_gcc
def test_confidence_is_that_of_the_calibration(tmp_path: Path) -> None:
    model = replace(meta_model(*SERIES, HEAD), calibration=COUNTED)
    export_c(model, tmp_path)
    rng = np.random.default_rng(0)
    outputs = (rng.normal(size=(300, 4)) * rng.choice([0.1, 1, 10], size=(300, 1))).astype("f4")
    script = Script(model, len(moving(model)))
    for each in outputs:
        script.confidence(each)
    found = script.run(built(tmp_path, model, CHECKED), tmp_path)
    ordered = np.sort(outputs, axis=1)
    margins = ordered[:, -1] - ordered[:, -2]
    wanted = COUNTED.confidence(torch.from_numpy(margins)).numpy()
    assert np.allclose([each for each, _ in found], wanted)
    assert [each for _, each in found] == (margins < COUNTED.threshold()).astype(int).tolist()
    assert {0, 1} == {each for _, each in found}


@needs_gcc
def test_no_heap_and_nothing_but_mathematics(tmp_path: Path) -> None:
    model = meta_model(*SERIES, HEAD)
    export_c(model, tmp_path, samples=5)
    line = ["gcc", "-std=c99", "-Os", "-c", "model.c", "-o", "model.o"]
    subprocess.run(line, cwd=tmp_path, check=True)
    symbols = subprocess.run(
        ["nm", "-u", "model.o"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.split()
    allowed = {"U", "exp", "expf", "expm1f", "log", "sqrt", "sqrtf", "tanhf", "floorf"}
    allowed |= {"memcpy", "memset", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}
    assert set(symbols) <= allowed


@needs_gcc
def test_names_cannot_break_out(tmp_path: Path) -> None:
    model = meta_model(*SERIES, HEAD)
    names = ('a "b" \\', "*/ int x; /*", "é\n??/", "%s")
    about = {**model.about, "run": '*/ "\n#error', "features": ["a, b", "*/ #error", "x" * 200]}
    model = replace(model, task=replace(model.task, class_names=names), about=about)
    export_c(model, tmp_path)
    built(tmp_path, model, FAST)
    (tmp_path / "names.c").write_text(
        '#include "model.h"\n#include <stdio.h>\n'
        "int main(void) { for (int i = 0; i < FM_OUTPUTS; i++) puts(fm_classes[i]); return 0; }\n"
    )
    line = ["gcc", "-std=c99", "names.c", "model.c", "-lm", "-o", "names"]
    subprocess.run(line, cwd=tmp_path, check=True)
    shown = subprocess.run([tmp_path / "names"], capture_output=True, check=True).stdout
    assert shown.decode() == "".join(f"{name}\n" for name in names)


class Residual(nn.Module):
    """A sum of two ways, which no chain of layers is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x + self.inner(x))
        return y


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 3)), r"layer '1' \(GELU\)"),
        (Residual(), r"between layer 'inner' and layer 'head' \(Linear\)"),
        (nn.Sequential(nn.Linear(4, 6), Cosine(6, 3)), r"layer '1' \(Cosine\)"),
    ],
)
def test_what_cannot_be_written_is_named(network: nn.Module, words: str, tmp_path: Path) -> None:
    model = meta_model(network, (4,), 3, HEAD)
    with pytest.raises(ModelError, match=words):
        export_c(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_refusals(tmp_path: Path) -> None:
    model = meta_model(*SERIES, Adaptation(0.1))
    with pytest.raises(SettingError, match="leave out --decide"):
        export_c(model, tmp_path, samples=5)
    with pytest.raises(ModelError, match="all layers of this network do"):
        export_c(model, tmp_path, int8=ranges(model))
    with pytest.raises(ModelError, match="the loss 'odd' cannot be written"):
        export_c(replace(model, loss=odd), tmp_path)
    with pytest.raises(SettingError, match="mini-batches"):
        export_c(meta_model(*SERIES, replace(HEAD, batch_size=3)), tmp_path, samples=5)
    with pytest.raises(SettingError, match="at least 2"):
        export_c(model, tmp_path, samples=1)
    wide = meta_model(ModelSettings("mlp", hidden=(200,)), (50,), 3, HEAD)
    with pytest.raises(MemoryBudgetError, match=r"flash \S+ > 30,720 bytes.*export with --int8"):
        export_c(wide, tmp_path, budget={"flash": 30 << 10})
    with pytest.raises(MemoryBudgetError, match=r"RAM \S+ > 2,048 bytes.*smaller network"):
        export_c(wide, tmp_path, budget={"ram": 2 << 10, "flash": 1 << 20})
    assert not list(tmp_path.iterdir())


def test_a_budget_says_how_many_samples_it_has_room_for(tmp_path: Path) -> None:
    model = meta_model(*SERIES, HEAD)
    budget = {"ram": 4 << 10, "flash": 1 << 20}
    with pytest.raises(MemoryBudgetError, match="at most") as refused:
        export_c(model, tmp_path, samples=20, budget=budget)
    most = int(re.findall(r"--decide (\d+)\)", str(refused.value))[0])
    assert export_c(model, tmp_path, samples=most, budget=budget).ram <= budget["ram"]
    with pytest.raises(MemoryBudgetError):
        export_c(model, tmp_path, samples=most + 1, budget=budget)
    with pytest.raises(MemoryBudgetError, match=": leave out --decide; or train a smaller"):
        export_c(model, tmp_path, samples=20, budget={"ram": 1 << 10})


def test_samples_that_are_no_tensor_of_numbers_are_refused(tmp_path: Path) -> None:
    tokens = build(ModelSettings("gru", hidden=(4,), vocabulary=9), (5,), 2, seed=0)
    model = meta_model(nn.Linear(5, 2), (5,), 2, HEAD)
    looked_up = replace(model, scaling=replace(model.scaling, tokens=True))
    with pytest.raises(ModelError, match="this model takes tokens"):
        export_c(looked_up, tmp_path)
    with pytest.raises(ModelError, match=r"'embedding' .Embedding.*it looks up tokens"):
        chain_of(tokens, (5,))
    parts, _ = InputParts.of({"a": [[1.0]], "b": [[2.0]]})
    named = functionalise(Named(), parts=parts)
    with pytest.raises(ModelError, match=r"takes inputs by name \('a', 'b'\)"):
        export_c(replace(model, network=named, theta=named.theta), tmp_path)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(torch.cat([a, b], 1))
        return y


def odd(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.sum(dim=1) + labels


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.normal() + i % 3:.4f},{rng.normal() - i % 3:.4f},{'abc'[i % 3]},device-{i // 12}"
        for i in range(72)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["width,height,label,device", *rows]) + "\n")
    succeed("train --data data.csv --node device --model mlp --rounds 2 --out run")
    for flags in ("", "--int8", "--decide 10 --budget ram=64K,flash=256K", "--adapted data.csv"):
        shown = succeed(f"export run --format c {flags} --out out/c", "plain")
        assert "written to out/c: model.h, model.c" in shown
        assert "multiply-adds" in shown
    header = (tmp_path / "out/c/model.h").read_text("utf-8")
    assert "FM_THRESHOLD" in header
    for line, words in [
        ("export run --format c", "name it: --out FOLDER"),
        ("export run --format c --budget 64K -o out/c", "ram=64K,flash=512K"),
        ("export run --format c --budget ram=1K -o out/c", "does not fit"),
        ("export run --decide 10 -o out/m.onnx", "--format c"),
    ]:
        outcome = call(line)
        assert outcome.code == 2
        assert words in outcome.complaint
    assert (tmp_path / "out/c/model.h").read_text("utf-8") == header
