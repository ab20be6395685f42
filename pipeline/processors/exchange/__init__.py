"""Models and histories in the formats of other systems: import, export, traces."""
