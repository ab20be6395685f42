"""The client of the Kubernetes API server: requests, list-watch, leases and Events.

`api_access` reads address and credentials, `api_client` sends requests, `list_watch` follows one
kind of object without keeping any, `lease` elects a leader, `event_reporter` writes Events. None of
them knows what the objects are for. `limits` has every time-out.
"""
