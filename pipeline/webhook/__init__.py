"""The admission webhook: an HTTPS service that the API server asks about pods.

`processors/admission` decides, `cluster_objects` follows what profiles refer to, `reviews` answers,
`webhook_service` runs it. It needs no Kafka: pods are created while Kafka is away.
"""
