"""From the description of a run to a meta-model: jobs, the round loop, run folders."""
