"""Carries out eviction plans: looks at the world once more, then evicts by the Eviction API.

`evictor` reads plans and takes them one at a time, `carrying_out` does what one of them says.
"""
