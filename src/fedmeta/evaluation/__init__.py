"""How good a model is on the target nodes, and how sure that is."""
