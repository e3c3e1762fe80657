"""`fedmeta ui`: a local page to look at runs, and to watch a model adapt.

Pages are rendered here, on loopback, from the files of a folder of runs; a little script of our own
makes them move. Nothing is fetched from elsewhere, and no folder of a run is written to: samples,
uploads and adapted models are kept in the memory of the process alone.
"""
