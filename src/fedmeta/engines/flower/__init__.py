"""Training over real processes: a platform and edges that Flower connects.

An edge serves one node or a whole shard of nodes. It runs the local engine over them and replies
with the sum of their contributions; the platform adds the sums of all edges and takes its step.

    edge.py, memory.py, shards.py            what an edge does, keeps on its disk, and reads
    plan.py, platform.py, roster.py          what the platform does, and whom it knows
    survey.py                                what edges are asked of finished models: sums
    parcel.py, courier.py                    what is sent between them, and how
    client_app.py, server_app.py, wire.py    the same behind Flower's apps and messages
    app.py, programs.py, hosting.py          Flower's own programs, started and stopped
    worker.py, door.py                       a process of the edge that stays, and the way to it
    watching.py, edge_table.py               what people see of a run
    trial.py, tasks.py                       a whole fleet on this machine; task after task on it
"""
