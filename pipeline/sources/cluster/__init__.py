"""The cluster watcher: publish the nodes, pods and workloads of an API server to topics.

`written_pods` remembers the last record of each of a million pods in columns. `watched_kinds` turns
list and watch events of one kind into records and tombstones. `watcher` follows the API server and
writes to the topics as their only writer.
"""
