"""Decisions about evictions, without their execution.

`evictability` says who may be evicted, `migration_limits` how many and how often, `arbitration` in
which order, `disruption_budgets` and `eviction_answers` what the API server answers and what that
means. `migration_policy` has what operators set, `eviction_history` what happened, and
`eviction_objections` the rules of plans that make room.
"""
