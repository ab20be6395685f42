"""Join each sample with the inventory of its node and pods into one window."""
