"""Actuators: consumers that make the world match the result topics.

`actuators.cluster` (Kubernetes objects) and `actuators.eviction` (pods that leave) live here, and
`actuators.node` (cgroups) will. An actuator compares wanted with actual and writes the difference;
nothing acts unless its mode says `act`.
"""
