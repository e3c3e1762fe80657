"""Networks, losses, and the meta-model that travels."""
