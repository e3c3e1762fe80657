"""A teacher of another shape: whom it may be, what is refused, what is kept, and what it costs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmeta
from fedmeta.config.spec import RunSpec
from fedmeta.core.errors import FedmetaError, ModelError, RunFolderError
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import refuse_code
from fedmeta.data import load
from fedmeta.models.endpoint import TOKEN, ask_endpoint
from fedmeta.models.meta_model import MetaModel
from fedmeta.models.teachers import Teacher, ask, open_teacher
from fedmeta.priors import OutputKL, PriorSettings, TeacherKL
from fedmeta.training.teaching import FILE
from fedmeta.training.train import RunRequest, train_run
from prior.conftest import CLASSES, task_table, trained

DATA = {"data": "unlabelled.npz"}
LATER = {"name": "later"}


@pytest.fixture(scope="session")
def _large(tmp_path_factory: pytest.TempPathFactory, _tasks: Path) -> Path:
    """A run on the earlier task, of another architecture."""
    folder = tmp_path_factory.mktemp("teacher") / "large"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(_tasks)
        trained(str(folder), "early", model={"name": "mlp", "hidden": [9, 7]})
    return folder


@pytest.fixture
def large(tasks: Path, _large: Path) -> Path:
    return _large


def same(a: Tree, b: Tree) -> bool:
    return list(a) == list(b) and all(torch.equal(leaf, b[name]) for name, leaf in a.items())


def run(
    teacher: Any = None, folder: Path | None = None, *, resume: bool = False, **rest: Any
) -> fedmeta.Run:
    """A run of the later task with a callable as teacher."""
    spec = RunSpec.from_dict(task_table("later", **rest))
    if teacher is not None:
        prior = PriorSettings(teacher=teacher, data="unlabelled.npz")
        spec = replace(spec, prior=prior)
    nodes = load(spec.data_settings, 0)
    return train_run(RunRequest(spec, nodes, folder=folder), resume=resume)


def of_model(path: Path) -> Any:
    model = MetaModel.load(path)
    return lambda inputs: model.predict(inputs.numpy())


def test_answers_of_the_same_architecture_pull_as_the_prior_model_does(tasks: Path) -> None:
    """`TeacherKL` with θ_p's logits is `OutputKL`, value and gradient."""
    model = MetaModel.load("early")
    inputs = model.scaled(np.load("unlabelled.npz")["x"])
    theta = {name: leaf + 0.1 for name, leaf in model.theta.items()}
    answers = model.network(model.theta, inputs)
    known = OutputKL(0.7, model.theta, model.network, inputs, 2.0)
    asked = TeacherKL(0.7, answers, model.network, inputs, 2.0)
    assert torch.equal(asked.value(theta), known.value(theta))
    assert same(asked.gradient(theta), known.gradient(theta))
    assert asked.prior == {}


def test_a_run_of_another_architecture_teaches(large: Path) -> None:
    run_ = trained(prior={"model": str(large), **DATA})
    about = run_.summary["settings"]["prior"]
    assert (about["kind"], about["strength"], about["tied"]) == ("TeacherKL", 1.0, [])
    assert not same(run_.meta_model.theta, trained().meta_model.theta)
    held = trained(prior={"model": str(large), "strength": 50.0, **DATA}).meta_model
    teacher, x = MetaModel.load(large), np.load("unlabelled.npz")["x"]
    near = (teacher.predict(x) - held.predict(x)).abs().mean()
    far = (teacher.predict(x) - trained().meta_model.predict(x)).abs().mean()
    assert near < 0.8 * far


def test_edges_pay_nothing(large: Path) -> None:
    """Bytes and gradients of every round are those of a run without a teacher, to the number."""
    free, held = trained(), trained(prior={"model": str(large), "strength": 1.0, **DATA})
    assert len(held.history) == len(free.history) > 0
    for mine, theirs in zip(held.history, free.history, strict=True):
        for name in ("bytes_up", "bytes_down", "counted"):
            assert mine[name] == theirs[name] > 0
    for name in ("gradient_evaluations", "bytes_per_node"):
        assert held.summary[name] == free.summary[name] > 0
    assert not same(held.meta_model.theta, free.meta_model.theta)


@contextmanager
def serving(reply: Any) -> Iterator[tuple[str, list[Any]]]:
    """An endpoint on this machine; `reply(number, inputs)` gives status and body."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            inputs = json.loads(self.rfile.read(length))["inputs"]
            asked.append((inputs, dict(self.headers)))
            status, body = reply(len(asked), inputs)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/predict", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_all_teachers_of_one_model_say_the_same(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = MetaModel.load(large)
    fedmeta.export_onnx(model, tmp_path / "large.onnx", adaptable=False)
    source = f"import fedmeta\n\ndef load():\n    return fedmeta.MetaModel.load({str(large)!r})\n"
    (tmp_path / "teacher.py").write_text(source)
    code = f"{tmp_path}/teacher.py:load"
    x = np.load("unlabelled.npz")["x"]
    wanted = ask(open_teacher(str(large)), x, CLASSES).softmax(dim=1)
    assert torch.allclose(wanted, model.predict(x), atol=1e-6)
    monkeypatch.setenv(TOKEN, "secret")
    with serving(lambda _n, some: (200, {"logits": model_logits(model, some)})) as (url, asked):
        for name in (code, url):
            found = ask(open_teacher(name), x, CLASSES).softmax(dim=1)
            assert torch.allclose(found, wanted, atol=1e-5), name
        assert asked[0][1]["Authorization"] == "Bearer secret"
    onnx = open_teacher(str(tmp_path / "large.onnx"), _given_by(tmp_path / "large.onnx"))
    assert torch.allclose(ask(onnx, x, CLASSES).softmax(dim=1), wanted, atol=1e-5)
    direct = ask(open_teacher(of_model(large)), x, CLASSES)
    assert torch.allclose(direct.softmax(dim=1), wanted, atol=1e-5)


def _given_by(path: Path) -> Any:
    """Whether an exported graph says probabilities: what a person would look up."""
    found = open_teacher(str(path), "logits").answer(np.zeros((2, 3), np.float32))
    return "probabilities" if np.allclose(np.sum(found, axis=1), 1, atol=1e-3) else "logits"


def model_logits(model: MetaModel, inputs: Any) -> Any:
    x = model.scaled(np.array(inputs, np.float32))
    return model.network(model.theta, x).tolist()


def test_classes_are_matched_by_name(large: Path) -> None:
    x = np.load("unlabelled.npz")["x"]
    turned = CLASSES[::-1]
    straight = ask(open_teacher(str(large)), x, CLASSES)
    assert torch.equal(ask(open_teacher(str(large)), x, turned), straight.flip(1))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: torch.full((len(x), 3), 1 / 3), "knows 3 classes, the task has 4"),
        (lambda x: torch.full((len(x), 4), 0.3), "sum to 1.2, not to 1"),
        (lambda x: torch.tensor([[-0.5, 0.5, 0.5, 0.5]] * len(x)), r"below 0 \(-0.5\)"),
        (lambda x: torch.full((len(x), 4), float("nan")), "NaN or infinite"),
        (lambda _: torch.full((4,), 0.25), "one row per input"),
        (lambda _: "yes", "answers no numbers"),
        (lambda _: [[0.5, 0.5], [1.0]], "answers no numbers"),
        (lambda _: 1 / 0, "fails .ZeroDivisionError"),
    ],
)
def test_what_makes_no_sense_is_one_line(tasks: Path, answer: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        run(answer)
    assert "\n" not in str(caught.value)


def test_logits_are_said_to_be_logits(tasks: Path) -> None:
    x = np.zeros((3, 3), np.float32)
    teacher = open_teacher(lambda inputs: inputs.new_tensor([[5.0, 0, 0, 0]] * 3), "logits")
    assert torch.equal(ask(teacher, x, CLASSES)[0], torch.tensor([5.0, 0, 0, 0]))


def test_a_model_of_other_classes_is_refused_by_name(tasks: Path, tmp_path: Path) -> None:
    arrays = dict(np.load("early.npz"))
    arrays["class_names"] = np.array(["ant", "bee", "cow", "dog"])
    np.savez(tmp_path / "others.npz", **arrays)
    trained(str(tmp_path / "others"), "early", data={"name": str(tmp_path / "others.npz")})
    with pytest.raises(ModelError, match="4 classes and does not know 'cat'"):
        trained(prior={"model": str(tmp_path / "others"), **DATA})


def test_what_was_answered_is_kept_and_the_rest_asked_later(tasks: Path, tmp_path: Path) -> None:
    """A teacher that fails midway costs one line; the run goes on with the same bits."""
    np.savez("many.npz", x=np.random.default_rng(1).normal(size=(150, 3)).astype(np.float32))

    def rows(inputs: Any) -> Any:
        values = torch.tensor(inputs)
        return torch.cat([values, values[:, :1]], dim=1).softmax(dim=1).tolist()

    def spec(url: str, **rest: Any) -> Any:
        return trained_or_resumed(tmp_path, {"model": url, "data": "many.npz"}, **rest)

    def failing(number: int, inputs: Any) -> Any:
        return (200, {"probabilities": rows(inputs)} if number < 3 else b"<html>busy</html>")

    with serving(failing) as (url, asked):
        with pytest.raises(ModelError, match="something else than probabilities"):
            spec(url, folder="cut")
        assert [len(each) for each, _ in asked] == [64, 64, 22]
    with serving(lambda _n, inputs: (200, {"probabilities": rows(inputs)})) as (url, asked):
        resumed = spec(url, folder="cut", resume=True)
        assert [len(each) for each, _ in asked] == [22]
        whole = spec(url, folder="whole")
        assert [len(each) for each, _ in asked] == [22, 64, 64, 22]
    assert same(resumed.meta_model.theta, whole.meta_model.theta)


def trained_or_resumed(place: Path, prior: Any, folder: str, *, resume: bool = False) -> Any:
    spec = RunSpec.from_dict(task_table("later", prior=prior))
    nodes = load(spec.data_settings, 0)
    return train_run(RunRequest(spec, nodes, folder=place / folder), resume=resume)


class _CutError(Exception):
    """Stands for a kill: nothing of ours catches it."""


def test_a_killed_run_goes_on_bit_for_bit_and_asks_nobody(large: Path, tmp_path: Path) -> None:
    asked = []

    def counting(inputs: Any) -> Any:
        asked.append(len(inputs))
        return answer(inputs)

    def gone(_inputs: Any) -> Any:
        raise AssertionError("the teacher is asked again")

    def cut(record: Any, *_: Any) -> None:
        if record["round"] == 3:
            raise _CutError

    answer = of_model(large)
    whole = run(counting, tmp_path / "whole")
    assert sum(asked) == 9
    spec = replace(
        RunSpec.from_dict(task_table("later")),
        prior=PriorSettings(teacher=counting, data="unlabelled.npz"),
    )
    nodes = load(spec.data_settings, 0)
    with pytest.raises(_CutError):
        train_run(RunRequest(spec, nodes, folder=tmp_path / "cut"), [cut])
    resumed = run(gone, tmp_path / "cut", resume=True)
    assert same(resumed.meta_model.theta, whole.meta_model.theta)
    assert (tmp_path / "cut" / FILE).is_file()


@pytest.mark.parametrize(
    ("reply", "words", "times"),
    [
        ((503, b""), "answers with status 503, asked 3 times", 3),
        ((404, b""), "refuses with status 404", 1),
        ((302, b""), "refuses with status 302", 1),  # wherever it points
        ((200, b"\xff\xfe"), "something else than probabilities", 1),
        ((200, b"[" * 100_000), "something else than probabilities", 1),
        ((200, {"classes": [1]}), "something else than probabilities", 1),
        ((200, {"probabilities": 3}), "something else than probabilities", 1),
    ],
)
def test_endpoints_that_answer_rubbish(reply: Any, words: str, times: int) -> None:
    pauses: list[float] = []
    with serving(lambda _n, _x: reply) as (url, asked):
        with pytest.raises(ModelError, match=words):
            ask_endpoint(url, np.zeros((2, 3), np.float32), pause=pauses.append)
        assert len(asked) == times
    assert pauses == [0.5, 1.0][: times - 1]


def test_endpoints_that_are_late_or_away() -> None:
    x, waits = np.zeros((1, 3), np.float32), threading.Event()

    def late(number: int, _x: Any) -> Any:
        if number < 3:
            waits.wait(30)
        return 200, {"probabilities": [[1.0]]}

    with serving(late) as (url, asked):
        try:
            found = ask_endpoint(url, x, timeout=0.3, pause=lambda _s: None)
        finally:
            waits.set()
        assert found == {"probabilities": [[1.0]]}
        assert len(asked) == 3
    with pytest.raises(ModelError, match=r"is not reached .*asked 3 times"):
        ask_endpoint(url, x, pause=lambda _s: None)


@pytest.mark.parametrize("url", ["http://", "http://u:p@h/x", "http://[::1/x", "http://h:99999/"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(FedmetaError, match=r"is no address|password"):
        ask_endpoint(url, np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("name", ["evil.py:load", "http://169.254.169.254/latest", "os:getcwd"])
def test_a_run_folder_neither_runs_code_nor_asks_anybody(name: str, tmp_path: Path) -> None:
    table = {"prior": {"model": name, "data": "x.npz"}}
    with pytest.raises(RunFolderError, match="unless you say so"):
        refuse_code(table, {}, tmp_path)
    refuse_code(table, table, tmp_path)
    refuse_code({"prior": {"model": "runs/early"}}, {}, tmp_path)


def test_graphs_that_do_what_they_should_not(tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for content, words in ((b"no graph", "no whole ONNX file"), (b"", "cannot be opened|no ")):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(ModelError, match=words):
            open_teacher(str(tmp_path / "bad.onnx"))
    with pytest.raises(ModelError, match="cannot be read"):
        open_teacher(str(tmp_path / "none.onnx"))


def test_a_graph_of_one_sample_at_a_time(tasks: Path) -> None:
    """Its batch is what it is asked about at once."""
    seen = []

    def answer(inputs: Any) -> Any:
        seen.append(len(inputs))
        return np.full((len(inputs), 4), 0.25)

    teacher = Teacher("one", answer, batch=1)
    assert len(ask(teacher, np.zeros((1, 3), np.float32), CLASSES)) == 1
    assert seen == [1]
