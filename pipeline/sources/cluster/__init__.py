"""The cluster watcher: what an API server says of nodes, pods and workloads, into topics.

`seen` remembers of a million pods what was written, without an object of each; `pods`, `nodes` and
`others` turn events of one kind into records, and what vanished into tombstones; `publish` writes
them as the only one who can; `watcher` puts it together under a lease.
"""
