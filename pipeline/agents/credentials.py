"""The settings of a connection in Faust's words; in aiokafka's they are in `topics.client`."""

from typing import Any

import faust

from pipeline.kafka.client import ssl_context
from pipeline.settings import KafkaSettings


def faust_credentials(kafka: KafkaSettings) -> Any:
    """What `faust.App(broker_credentials=...)` takes; None for a plain connection."""
    context = ssl_context(kafka)
    if kafka.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.reveal() if kafka.sasl_password else None,
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context=context)
