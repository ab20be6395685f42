"""Checks before an eviction: objections to a plan, and shared disruption budgets."""
