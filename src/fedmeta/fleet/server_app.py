"""The platform as Flower's ServerApp: `plan.carry_out` over Flower's grid.

The run folder, which has the plan, is named by the run's configuration:
`flwr run APP NAME --run-config 'folder="FOLDER"'`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from fedmeta.core.errors import FedmetaError, MissingExtraError
from fedmeta.core.storage import write_json
from fedmeta.fleet.message import Message, MessageError
from fedmeta.fleet.plan import FOLDER, carry_out
from fedmeta.fleet.transport import Kind

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MessageType, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise MissingExtraError("flwr", "flower") from None

_FACTS, _TENSORS = "facts", "tensors"
OUTCOME = "outcome.json"
_KINDS = {
    "introduce": MessageType.QUERY,
    "round": MessageType.TRAIN,
    "prepare": f"{MessageType.TRAIN}.prepare",
    "reveal": f"{MessageType.TRAIN}.reveal",
    "measure": MessageType.EVALUATE,
}
_POLL = 0.3  # seconds between two looks for replies
_SPARE = (
    30.0  # seconds that a message outlives its deadline, so that late replies are still reported
)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the plan of a run folder; how it ended is left there."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    folder = Path(str(context.run_config["folder"]))
    outcome = {"problem": "", "remedy": "", "code": 0}
    try:
        carry_out(folder, GridTransport(grid), waiting=_say)
    except FedmetaError as error:
        outcome = {"problem": error.problem, "remedy": error.remedy, "code": error.exit_code}
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        outcome = {"problem": said, "remedy": "see the log of the SuperLink", "code": 1}
        raise
    finally:  # nobody looks into this process
        write_json(folder / FOLDER / OUTCOME, outcome)


class GridTransport:
    """Flower's grid as a transport."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def connected(self) -> dict[int, str]:
        """Flower's numbers of the SuperNodes that are online, and the names they registered."""
        return {node.node_id: node.name for node in self._grid.get_nodes()}

    def ask(
        self, kind: Kind, messages: Mapping[int, Message], deadline: float
    ) -> dict[int, Message | str]:
        """Send to all and wait for all, but not beyond the deadline."""
        end, asked = time.monotonic() + deadline, {}
        for address, message in messages.items():
            question = FlowerMessage(
                to_records(message),
                dst_node_id=address,
                message_type=_KINDS[kind],
                ttl=deadline + _SPARE,
                group_id=str(message.facts.get("round", "")),
            )
            for number in self._grid.push_messages([question]):
                if number:
                    asked[number] = address
        replies: dict[int, Message | str] = {}
        while asked and time.monotonic() < end:
            for reply in self._grid.pull_messages(list(asked)):
                # By the question: an error in the name of a dead node comes from the SuperLink.
                if (number := reply.metadata.reply_to_message_id) in asked:
                    replies[asked.pop(number)] = _read(reply)
            if asked:
                time.sleep(_POLL)
        return replies


def to_records(message: Message) -> RecordDict:
    """A message as the content of a Flower message.

    The tensors are one array of bytes: Flower sends every array by a call of its own.
    """
    facts, tensors = message.encoded()
    array = Array(dtype="uint8", shape=(len(tensors),), stype="safetensors", data=tensors)
    return RecordDict(
        {_FACTS: ConfigRecord({"json": facts}), _TENSORS: ArrayRecord({"all": array})}
    )


def from_records(records: RecordDict) -> Message:
    """The inverse of `to_records`; what is not a message is refused."""
    try:
        facts = cast(ConfigRecord, records[_FACTS])["json"]
        tensors = cast(ArrayRecord, records[_TENSORS])["all"].data
    except (KeyError, AttributeError, TypeError) as error:
        raise MessageError(f"a message is no message ({error!r})", "check its sender") from error
    if not isinstance(facts, str) or not isinstance(tensors, bytes):
        raise MessageError("a message is no message", "check its sender")
    return Message.decoded(facts, tensors)


def _read(message: FlowerMessage) -> Message | str:
    if message.has_error():
        return f"Flower's error {message.error.code} ({message.error.reason})"
    try:
        return from_records(message.content)
    except MessageError as error:
        return Message({"damaged": error.problem})


def _end_with(parent: int) -> None:
    """End this process when the one that started it has ended: it would hold the run folder."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _say(line: str) -> None:
    print(f"fedmeta: {line}", file=sys.stderr, flush=True)
