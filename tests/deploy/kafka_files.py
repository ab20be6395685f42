"""The file of deploy/chart/kafka that is written from the topics and the rights of roles.

python -m tests.deploy.kafka_files    # `make docs`
"""

from typing import Final

from pipeline.cli.kubernetes_yaml import objects_yaml
from pipeline.topics.strimzi import strimzi_objects
from tests.deploy.helm import CHART

PATH: Final = CHART / "kafka/topics-and-users.yaml"


def text() -> str:
    """The whole file. The chart replaces the marks; a topic of 0 partitions gets those of the
    settings, and each one their replicas."""
    objects = strimzi_objects(
        cluster="<cluster>", prefix="<prefix>", group="<group>", partitions=0, replicas=1
    )
    return "# Written by `make docs`; do not edit.\n" + objects_yaml(objects)


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text())
