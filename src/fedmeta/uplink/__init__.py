"""What happens to a contribution on its way from a node to the sum."""
