"""Training over real processes: a platform and edges that Flower connects.

An edge serves one node or a whole shard of nodes. It runs the engine over them and replies with the
sum of their contributions; the platform adds the sums of all edges and takes its step.

    edge.py, edge_state.py, shards.py            what an edge does, keeps on its disk, and reads
    plan.py, platform.py, roster.py              what the platform does, and whom it knows
    queries.py                                   what edges are asked of finished models: sums
    message.py, transport.py                     what is sent between them, and how
    secure_rounds.py                             rounds in which the platform sees the sum alone
    client_app.py, server_app.py                 the same behind Flower's apps and messages
    app_bundle.py, flower_commands.py, launch.py Flower's own programs, started and stopped
    worker.py, worker_socket.py                  a process of the edge that stays, and its socket
    edge_table.py                                what people see of the edges
    local_fleet.py, sequences_over_fleet.py      a whole fleet on this machine; tasks in a row on it
    certificates.py, gateway.py                  keys, and the proxy in front of the platform
    reopen.py                                    a run opened again: settings, model, nodes
"""
