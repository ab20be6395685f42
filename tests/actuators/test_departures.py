"""How long a pod counts as leaving whose eviction may not have happened."""

from random import Random

from pipeline.errors import ApiUnavailableError, KafkaError
from pipeline.topics.actions import ActionRecord
from tests.actuators.simulated_cluster import failed_with
from tests.actuators.test_relief import BARE, SOFT, World, fails_at_the_call


async def test_a_pod_that_a_failed_call_did_not_evict_counts_for_a_minute() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    error = failed_with(ApiUnavailableError("500 a webhook timed out"), 500)
    world.cluster.failure = fails_at_the_call(world, error)
    world.cluster.random = Random(1)  # the server does not evict it
    await world.run(world.plan(pod), seconds=50.0)
    assert [action.outcome for action in world.log] == ["intended", "failed"]
    assert world.gate.history.is_leaving(pod.uid)
    await world.run(seconds=30.0)
    assert not world.gate.history.is_leaving(pod.uid)
    assert world.evicted == []


async def test_a_pod_whose_call_was_refused_counts_for_a_minute_after_a_change_of_the_leader(
) -> None:  # fmt: skip
    former = World(policy=BARE)
    pod = former.cluster.add_pod("n")
    budget = failed_with(ApiUnavailableError("429", was_done=False), 429, "DisruptionBudget")
    former.cluster.failure = fails_at_the_call(former, budget)
    # It expires before the next attempt.
    await former.run(former.plan(pod, seconds=4.0), seconds=5.0)
    assert [action.outcome for action in former.log] == ["intended", "refused", "refused"]
    world = World(policy=BARE)
    world.cluster.pods[pod.uid] = pod
    for action in former.log:
        world.worker.learn(action)
    assert world.gate.history.is_leaving(pod.uid)
    await world.run(seconds=70.0)
    assert not world.gate.history.is_leaving(pod.uid)


async def test_a_marked_pod_counts_for_the_ttl() -> None:
    world = World(policy=SOFT)
    pod = world.cluster.add_pod("n")
    await world.run(world.plan(pod), seconds=200.0)
    assert world.gate.history.is_leaving(pod.uid)


async def test_an_eviction_that_was_not_asked_for_uses_up_no_limit_in_time() -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])

    async def fails(action: ActionRecord) -> float | None:
        raise KafkaError("no broker")

    world.log.write = fails  # type: ignore[method-assign]
    await world.run(world.plan(pod), seconds=20.0)
    assert [action.outcome for action in world.log] == ["failed"]
    vars(world.log).pop("write")
    await world.run(world.plan(pod), seconds=20.0)
    assert world.evicted == [pod.uid]


async def test_a_check_that_fails_after_the_record_uses_up_no_limit_in_time() -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    since = world.clock.monotonic() + 20.0

    def failure() -> Exception | None:
        is_recorded = any(action.outcome == "intended" for action in world.log)
        return (
            ApiUnavailableError("500") if is_recorded and world.clock.monotonic() < since else None
        )

    world.cluster.failure = failure
    await world.run(world.plan(pod), seconds=55.0)
    assert world.evicted == [pod.uid]
