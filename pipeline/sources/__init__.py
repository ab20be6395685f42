"""Sources: whatever tells the topics of the world outside.

`publish` writes records where they belong and removes what vanished; `files` reads Node and Pod
objects as kubectl prints them; `cluster` follows an API server; `providers` bring usage that others
have measured; `fleet` simulates nodes for the demo and for load tests.
"""
