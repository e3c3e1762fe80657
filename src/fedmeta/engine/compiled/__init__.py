"""Meta-gradients of chains of linear layers in C, compiled on the machine they run on."""
