"""An edge as Flower's ClientApp: a message is handed to the edge's worker, or answered here.

Flower starts a new process for every message, so whatever an edge remembers lies in its folder,
which the SuperNode names: --node-config 'edge="FOLDER"'.

This file and worker_socket.py travel in the app that Flower ships (see app_bundle.py) and import
nothing of fedmeta before it is needed, since that would load PyTorch.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .worker_socket import ask

app = ClientApp()


def _answered(kind: str, message: Message, context: Context) -> Message:
    home = Path(str(context.node_config["edge"]))
    facts = str(cast(ConfigRecord, message.content["facts"])["json"])
    tensors = cast(ArrayRecord, message.content["tensors"])["all"].data
    reply = ask(home, kind, facts, tensors)
    if reply is None:
        from fedmeta.fleet.edge import answer

        reply = answer(home, kind, facts, tensors)
    array = Array(dtype="uint8", shape=(len(reply[1]),), stype="safetensors", data=reply[1])
    records = RecordDict()
    records["facts"] = ConfigRecord({"json": reply[0]})
    records["tensors"] = ArrayRecord({"all": array})
    return Message(records, reply_to=message)


app.query()(partial(_answered, "introduce"))
app.train()(partial(_answered, "round"))
app.train("prepare")(partial(_answered, "prepare"))
app.train("reveal")(partial(_answered, "reveal"))
app.evaluate()(partial(_answered, "measure"))
