"""Whether pods may be evicted: what is looked at before anybody is."""
