"""The edge's memory: no order of losses, repeats and crashes lets it disagree with the platform."""

from __future__ import annotations

import errno
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmeta.core import storage
from fedmeta.core.errors import RunFolderError
from fedmeta.fleet.edge_state import (
    EdgeState,
    LostStateError,
    RoundRequest,
    StaleError,
    StoredRound,
    answered,
    restore,
)
from fedmeta.fleet.message import Message


def remembered(memory: EdgeState, call: RoundRequest, value: float) -> Message:
    """Compute a round whose state is a number, unless it is there already."""
    if answered(memory.entries(), call):
        return memory.reply(call.round)
    before = memory.states(call.counted)["dual"]["a"] if call.counted else torch.zeros(1)
    reply = Message({"round": call.round}, {"update": before + value})
    memory.save(call, {"dual": {"a": before + value}}, reply)
    return reply


def test_a_repeated_round_returns_the_stored_reply(tmp_path: Path) -> None:
    memory = EdgeState(tmp_path / "run")
    first = remembered(memory, RoundRequest(1, 1, 0, "x"), 5.0)
    again = remembered(memory, RoundRequest(1, 1, 0, "x"), 7.0)
    assert torch.equal(first.tensors["update"], again.tensors["update"])
    assert again.facts == {"round": 1}


def test_a_stale_round_changes_nothing(tmp_path: Path) -> None:
    memory = EdgeState(tmp_path / "run")
    remembered(memory, RoundRequest(1, 1, 0, "a"), 1.0)
    remembered(memory, RoundRequest(3, 1, 1, "c"), 1.0)
    files = {f.name: f.read_bytes() for f in memory.folder.iterdir()}
    for call in (
        RoundRequest(2, 1, 1, "b"),
        RoundRequest(1, 1, 0, "a"),
        RoundRequest(2, 9, 1, "b"),
        RoundRequest(3, 0, 1, "d"),
    ):
        with pytest.raises(StaleError):
            remembered(memory, call, 9.0)
    assert {f.name: f.read_bytes() for f in memory.folder.iterdir()} == files


def test_a_lost_upload_is_dropped_and_a_counted_one_committed(tmp_path: Path) -> None:
    memory = EdgeState(tmp_path / "run")
    remembered(memory, RoundRequest(1, 1, 0, "a"), 1.0)
    remembered(memory, RoundRequest(2, 1, 1, "b"), 10.0)  # counted 1, so it starts from 1
    lost = remembered(memory, RoundRequest(3, 1, 1, "c"), 100.0)  # 2 was lost
    assert float(lost.tensors["update"]) == 101.0
    kept = remembered(memory, RoundRequest(4, 1, 3, "d"), 1000.0)
    assert float(kept.tensors["update"]) == 1101.0
    assert [entry.round for entry in memory.entries()] == [3, 4]


def test_an_edge_that_lost_its_disk_says_so(tmp_path: Path) -> None:
    with pytest.raises(LostStateError, match="counted round 4"):
        answered([], RoundRequest(5, 1, 4, "x"))
    with pytest.raises(LostStateError, match="counted round 4"):
        answered([StoredRound(2, 1, "b")], RoundRequest(5, 1, 4, "x"))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = EdgeState(tmp_path / "run")
    remembered(memory, RoundRequest(1, 1, 0, "a"), 1.0)

    def full(path: Path, content: bytes, *rest: object) -> None:
        path.write_bytes(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "_write_synced", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        remembered(memory, RoundRequest(2, 1, 1, "b"), 10.0)
    assert [entry.round for entry in memory.entries()] == [1]
    monkeypatch.undo()
    assert float(remembered(memory, RoundRequest(2, 1, 1, "b"), 10.0).tensors["update"]) == 11.0


def test_states_of_other_shapes_are_refused() -> None:
    with pytest.raises(RunFolderError, match="dual/a"):
        restore({"dual": {"a": torch.zeros(2, 3)}}, {"dual": {"a": torch.zeros(1, 3)}})


EVENTS = st.lists(
    st.sampled_from(["arrives", "asked in vain", "reply lost", "edge crashes", "platform killed"]),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_the_sum_is_that_of_counted_rounds_whatever_happens(events: list[str], luck) -> None:
    """A model of platform and edge: the edge's state is always what the platform has counted.

    The state is the sum of the numbers of all counted rounds. If a lost upload were committed, or a
    counted one dropped, the two sums would part.
    """
    with tempfile.TemporaryDirectory() as folder:
        memory = EdgeState(Path(folder) / "run")
        number, starts, counted, total = 1, 1, 0, 0.0
        delayed: list[tuple[RoundRequest, float]] = []
        for event in events:
            value = float(2**number)
            call = RoundRequest(number, starts, counted, f"{number}-{counted}")
            if delayed and luck.random() < 0.5:  # an old message comes after all
                late, old_value = luck.choice(delayed)
                with suppress(StaleError):
                    remembered(memory, late, old_value)
            if event == "asked in vain":
                delayed.append((call, value))
                number += 1  # others were enough
            elif event == "reply lost":
                remembered(memory, call, value)
                delayed.append((call, value))
                number += 1
            elif event == "edge crashes":  # before it wrote; the round is repeated
                (memory.folder / ".round.tmp").parent.mkdir(exist_ok=True)
                (memory.folder / ".round-000001.safetensors.1.tmp").write_bytes(b"part")
            elif event == "platform killed":  # after the reply, before its checkpoint
                remembered(memory, call, value)
                starts += 1
            else:
                reply = remembered(memory, call, value)
                assert float(reply.tensors["update"]) == total + value
                total, counted, number = total + value, number, number + 1
        if counted:
            assert float(memory.states(counted)["dual"]["a"]) == total
