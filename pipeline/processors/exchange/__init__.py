"""Import and export models in formats of other systems, and read traces."""
