"""Doctor with a real broker: missing and changed topics, and workers with conflicting ids."""

import asyncio
from uuid import uuid4

import msgspec
from aiokafka import AIOKafkaConsumer
from click.testing import CliRunner

from pipeline.cli.doctor import check_broker, check_workers
from pipeline.cli.doctor_check import Check
from pipeline.cli.main import cli
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings, Settings
from tests.broker import flags_of
from tests.processes import until


def checks(kafka: KafkaSettings) -> dict[str, Check]:
    return {check.name: check for check in check_broker(Settings(kafka=kafka))}


def test_missing_topics_fail_until_they_are_applied(kafka: KafkaSettings) -> None:
    before = checks(kafka)
    assert (before["kafka"].status, before["topics"].status) == ("ok", "fail")
    assert "topics apply" in before["topics"].todo
    flags = flags_of(kafka)
    applied = CliRunner().invoke(cli, ["topics", "apply", *flags])
    assert applied.exit_code == 0, applied.output
    after = checks(kafka)
    assert (after["topics"].status, after["workers"].status) == ("ok", "warn")
    mistyped = checks(msgspec.structs.replace(kafka, topic_prefix=f"{kafka.topic_prefix}x"))
    assert mistyped["topics"].todo.startswith("set kafka.topic_prefix: the broker has topics of")
    result = CliRunner().invoke(cli, ["doctor", *flags, "--partitions", "3"])
    assert (result.exit_code, "2 partitions, not 3" in result.stdout) == (1, True)
    assert "-> set kafka.partitions (--partitions) to 2" in result.stdout
    result = CliRunner().invoke(cli, ["top", *flags, "--topic-prefix", f"{kafka.topic_prefix}x"])
    assert (result.exit_code, "the broker has topics of" in result.stderr) == (4, True)


async def test_two_workers_with_one_instance_id_are_reported(kafka: KafkaSettings) -> None:
    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            f"{kafka.topic_prefix}.samples", bootstrap_servers=kafka.bootstrap_servers,
            group_id=group, group_instance_id="worker-0", heartbeat_interval_ms=200,
        )  # fmt: skip

    group = f"group-{uuid4().hex[:8]}"
    await apply_topics(kafka)
    async with member():
        found = await asyncio.to_thread(check_workers, kafka, group)
        assert (found.status, "Stable, 1 member" in found.found) == ("ok", True)

        async def is_reported() -> bool:
            # Two looks show it if one member has replaced the other in between.
            found = await asyncio.to_thread(check_workers, kafka, group)
            return (found.status, "worker.instance_id" in found.todo) == ("fail", True)

        async with member():
            await until(is_reported)
