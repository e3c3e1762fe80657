"""One module per source of samples."""
