"""How fast a round is: against loops, libraries and the arithmetic limit. See README.md here."""
