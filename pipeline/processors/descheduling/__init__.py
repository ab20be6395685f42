"""DeschedulerConfiguration: reading, defaults and checks, and the thresholds that a node gets."""
