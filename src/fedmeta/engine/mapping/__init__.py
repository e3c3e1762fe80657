"""How chunks of nodes are computed one after the other: on a CPU's threads, a GPU, or in a loop.

A mapping yields Σ contributions and new states of every chunk, in order:

    mapping(arguments, chunks)      arguments(rows) are those of the function for a chunk
"""
