"""Try Kafka in a standby, while another process holds the Lease.

A standby with a wrong address or password would else be noticed when it is needed.
"""

from typing import Final

from pipeline.clock import Clock
from pipeline.errors import KafkaError, TopicDriftError
from pipeline.kafka.topic_admin import require_topics
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.settings import Settings
from pipeline.topics.access import ROLES

log = get_logger(__name__)

KAFKA_REACHABLE = gauge(
    "standby_kafka_reachable", "1 if a standby could use Kafka when it last tried, else 0.",
    ["role"],
)  # fmt: skip
CHECK_SECONDS: Final = 60.0


async def check_kafka_of_standby(settings: Settings, role: str, clock: Clock, lease: Lease) -> None:
    """Log every minute while the lease is not held whether Kafka answers, until cancelled.

    Raises `TopicDriftError` if a topic of the role is missing.
    """
    is_reachable = True
    while True:
        if not lease.is_held:
            try:
                await require_topics(settings.kafka, ROLES[role].topics)
            except TopicDriftError:
                raise
            except KafkaError as error:
                is_reachable = False
                log.warning("standby cannot use Kafka", why=str(error))
            else:
                if not is_reachable:
                    log.info("standby can use Kafka again")
                is_reachable = True
            KAFKA_REACHABLE.labels(role).set(is_reachable)
        await clock.sleep(CHECK_SECONDS)
