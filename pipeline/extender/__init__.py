"""The scheduler extender: an HTTP service over the state table.

`scheduler_messages` and `preempt_messages` read and write kube-scheduler's messages, `decisions`
decides from the table, `scheduler_api` answers, `service` runs it. `limits` has every time-out. No
request waits for Kafka or the API server: a scheduler asks for each pod, and waits for a second.
"""
