"""Decide what a node's cgroups hold: values per place, claims of features, and order of writes."""
