"""The scheduler extender: an HTTP service over the state table.

`scheduler_messages` and `preempt_messages` read and write kube-scheduler's messages, `decisions`
decides from the table, `scheduler_api` answers, `service` runs it. `limits` has every time-out.
"""
