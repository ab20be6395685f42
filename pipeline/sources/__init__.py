"""Sources: whatever tells the topics of the world outside. Files, and a simulated fleet.

`publish` writes records where they belong and removes what vanished; `files` reads Node and Pod
objects as kubectl prints them; `fleet` simulates nodes for the demo and for load tests.
"""
