"""Rights of roles, without a broker: what is declared, and how it is printed."""

from click.testing import CliRunner

from pipeline.cli.topics import command
from pipeline.topics.access import ROLES, Right, rights_of
from pipeline.topics.registry import TOPICS


def test_every_topic_has_a_role_that_writes_it() -> None:
    assert {topic for role in ROLES.values() for topic in role.writes} == {*TOPICS}


def test_only_commands_may_read_everything() -> None:
    assert [name for name, role in ROLES.items() if role.reads == TOPICS] == ["reader", "operator"]


def test_an_exporter_may_write_samples_and_read_nodes() -> None:
    assert {*rights_of(ROLES["exporter"], "p", "g")} == {
        Right("springtide-exporter", "topic", "p.samples", "Write"),
        Right("springtide-exporter", "topic", "p.nodes", "Read"),
    }


def test_a_watcher_has_its_transactional_id_and_a_worker_its_group() -> None:
    other = {
        name: [right[1:] for right in rights_of(role, "p", "g") if right.resource != "topic"]
        for name, role in ROLES.items()
    }
    assert {name: rights for name, rights in other.items() if rights} == {
        "watcher": [("transactional-id", "p-watcher", "Write")],
        "worker": [("group", "g", "Read")],
        "worker-with-files": [("group", "g", "Read")],
        "operator": [("group", "g", "Describe")],
    }


def test_rights_are_printed_as_a_table_and_as_commands() -> None:
    flags = ["acls", "--role", "evictor", "--topic-prefix", "east"]
    table = CliRunner().invoke(command, flags)
    assert (table.exit_code, table.output.splitlines()[:2]) == (
        0,
        [
            "USER                RESOURCE  NAME                 OPERATION",
            "springtide-evictor  topic     east.eviction-plans  Read",
        ],
    )
    commands = CliRunner().invoke(command, [*flags, "-o", "commands"])
    assert commands.output.splitlines()[0] == (
        "kafka-acls.sh --bootstrap-server 127.0.0.1:9092 --add "
        "--allow-principal User:springtide-evictor --operation Read --topic east.eviction-plans"
    )
