"""The commands that `springtide topics` prints for a Kafka that others manage, run by Kafka's own
tools on a real broker with TLS, passwords and an authorizer, and compared with the registry."""

import asyncio
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from pipeline.cli.topics import command
from pipeline.kafka.topic_admin import check_topics
from pipeline.local.broker_security import ADMIN
from pipeline.local.java_runtime import find_java
from pipeline.local.kafka_jars import ensure_jars
from pipeline.local.local_kafka import LocalKafka, local_kafka
from pipeline.topics.access import ROLES, rights_of
from pipeline.topics.registry import NODE_STATE, SAMPLES, TOPICS
from tests.processes import ROOT, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PREFIX: Final = "plain"
GROUP: Final = f"{PREFIX}.springtide-worker"
TOOLS: Final = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
}
# A tool takes a second of CPU for each command: a topic of each kind, and roles that together have
# every kind of right.
TOPICS_HERE: Final = (SAMPLES, NODE_STATE)
ROLES_HERE: Final = ("exporter", "watcher", "operator")
_LOCK: Final = ROOT / "tests/data/kafka-tools-jars.lock"
_SECONDS: Final = 240.0
_RESOURCE: Final = re.compile(r"resourceType=(\w+), name=([^,]+), patternType=LITERAL")
_GRANT: Final = re.compile(
    r"principal=User:([^,]+), host=\*, operation=(\w+), permissionType=ALLOW"
)


class Scripts:
    """Commands of a `springtide topics` command, and Kafka's tools that run them."""

    def __init__(self, broker: LocalKafka, folder: Path) -> None:
        self.settings = broker.security.settings_of(ADMIN, broker.bootstrap_servers)
        self.properties = folder / "admin.properties"
        assert self.settings.sasl_password is not None
        self.properties.write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={self.settings.sasl_mechanism}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{self.settings.sasl_username}" '
            f'password="{self.settings.sasl_password.reveal()}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.settings.ssl_ca_file}\n"
        )
        jars = [*ensure_jars(), *ensure_jars(_LOCK)]
        self.java = [str(find_java().path), "-XX:TieredStopAtLevel=1", "-cp",
                     ":".join(map(str, jars))]  # fmt: skip

    def printed(self, *arguments: str) -> list[str]:
        """The lines that `springtide topics` prints."""
        flags = ["--bootstrap-servers", self.settings.bootstrap_servers, "--topic-prefix", PREFIX]
        flags += ["-o", "commands", "--command-config", str(self.properties)]
        result = CliRunner().invoke(command, [*arguments, *flags])
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    def run(self, line: str) -> str:
        """Run a line as a shell does, with the class that the script starts."""
        script, *words = shlex.split(line)
        completed = subprocess.run(
            [*self.java, TOOLS[script], *words], capture_output=True, text=True, check=False,
            timeout=_SECONDS,
        )  # fmt: skip
        assert completed.returncode == 0, f"{line}: {completed.stdout}{completed.stderr}"
        return completed.stdout

    def run_all(self, lines: Sequence[str]) -> None:
        with ThreadPoolExecutor(2) as pool:
            assert len(list(pool.map(self.run, lines))) == len(lines) > 0


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    with local_kafka(secure=True) as broker:
        yield Scripts(broker, tmp_path_factory.mktemp("scripts"))


def test_topics_are_as_the_registry_declares_them(scripts: Scripts) -> None:
    lines = scripts.printed("table")
    assert len(lines) == len(TOPICS)
    scripts.run_all([lines[TOPICS.index(topic)] for topic in TOPICS_HERE])
    kafka = replace(scripts.settings, topic_prefix=PREFIX)
    missing = {(topic.full_name(PREFIX), "missing") for topic in TOPICS if topic not in TOPICS_HERE}

    def differences() -> set[tuple[str, str]]:
        return {(each.topic, each.kind) for each in asyncio.run(check_topics(kafka))}

    # The others are missing, and nothing else differs.
    assert eventually(lambda: differences() == missing), differences()


def test_users_have_the_rights_and_quotas_that_are_declared(scripts: Scripts) -> None:
    scripts.run_all(
        [line for role in ROLES_HERE for line in scripts.printed("acls", "--role", role)]
    )
    connection = (
        f"--bootstrap-server {scripts.settings.bootstrap_servers} "
        f"--command-config {scripts.properties}"
    )
    listed = set()
    for line in scripts.run(f"kafka-acls.sh {connection} --list").splitlines():
        if resource := _RESOURCE.search(line):
            kind, name = resource.groups()
        elif grant := _GRANT.search(line):
            user, operation = grant.groups()
            listed.add((user, _words(kind), name, _words(operation)))
    declared = {
        (right.user, _words(right.resource), right.name, _words(right.operation))
        for role in ROLES_HERE
        for right in rights_of(ROLES[role], PREFIX, GROUP)
    }
    # The broker grants the rights of all roles on the topics of the default prefix by itself.
    assert {each for each in listed if each[2].startswith(PREFIX)} == declared
    quotas = scripts.run(f"kafka-configs.sh {connection} --describe --entity-type users")
    limits = re.findall(r"'(\S+)' are producer_byte_rate=(\S+)", quotas)
    assert [(user, float(rate)) for user, rate in limits] == [
        ("springtide-exporter", ROLES["exporter"].bytes_per_second)
    ]


def _words(text: str) -> str:
    """A name as Kafka and we write it: TRANSACTIONAL_ID, `transactional-id`."""
    return re.sub(r"[_-]", "", text).lower()
