"""One module per source of samples; `registry` says which one reads what."""
