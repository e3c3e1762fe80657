"""What a run is told: settings tables, presets, TOML files."""
