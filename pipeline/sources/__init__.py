"""Sources: publish nodes, pods and usage from other systems to the topics.

`compacted_writer` writes records and tombstones; `object_files` reads Nodes and Pods as kubectl
prints them; `cluster` follows an API server; `provider` imports usage from other systems;
`simulated_fleet` simulates nodes for the demo and for load tests.
"""
