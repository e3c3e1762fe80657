"""Meta-gradients of chains of linear layers in closed form, for many nodes at once."""
