"""Run everything under faults drawn by a seed, and check every guarantee: `make chaos`.

    python -m tests.chaos.run [--seed 7] [--minutes 10] [--nodes 200] [--instances 2]

A failing run prints its seed: with it, and the same numbers, the same faults meet the same targets.
Their moments in the work of a process are not the same, so a rare failure may need repetitions.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipeline.kube.lease import LeaseTerms
from pipeline.local.control_plane import ControlPlane, local_control_plane
from pipeline.local.kafka_cluster import BROKERS, LocalCluster, local_cluster
from pipeline.processors.overcommit.offer_decision import OfferInputs, offers_now
from pipeline.processors.overcommit.status_patch import ABSENT, EXTENDED_RESOURCES
from pipeline.settings import KafkaSettings
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.registry import EVICTION_PLANS
from tests.broker import messages
from tests.chaos.audit_log import AUDIT_POLICY
from tests.chaos.checker import BACK_SECONDS, Injected, Observation, Offer, growth, problems
from tests.chaos.eviction_storm import run_storm
from tests.chaos.hostile import hostile_objects, is_hostile, listing, send_records
from tests.chaos.load import WINDOW_SECONDS
from tests.chaos.node_limits import node_trees
from tests.chaos.relief_loop import asking_plane, run_loop
from tests.chaos.role_process import limit_files
from tests.chaos.schedule import PROCESSES, ROLES, Fault, faults
from tests.chaos.world import EXPORTERS, NO_BUGS, Bugs, World, running_world
from tests.plane import NAMESPACES
from tests.processes import until
from tests.system.harness import Feed, Logs, gather

Report = Callable[[str], None]

FULL_DISK_BYTES = 1024
STORM_EVICTIONS = 60
STORM_SECONDS = 30.0
"""The longest time until an eviction: six in a minute are allowed."""


async def chaos(
    plane: ControlPlane, cluster: LocalCluster, folder: Path, *, seed: int, seconds: float,
    nodes: int, instances: int, report: Report, planned: Iterable[Fault] = (), bugs: Bugs = NO_BUGS,
) -> list[str]:  # fmt: skip
    """Run, and return the violations of guarantees. Faults are `planned`, or drawn by the seed."""
    done: list[Injected] = []
    with node_trees(EXPORTERS[:instances]) as trees:
        async with running_world(
            plane, cluster.brokers, folder, seed=seed, nodes=nodes, bugs=bugs, trees=trees,
            names=[f"{role}-{number}" for role in ROLES for number in range(instances)],
        ) as (world, made):  # fmt: skip
            async with made.running(WINDOW_SECONDS):
                began = time.time()
                await until(lambda: world.all_work_since(began), 120, lambda: state_of(world))
                report(f"seed {seed}: all roles work after {time.time() - began:.0f} s")
                deadline = time.monotonic() + seconds
                for fault in planned or faults(seed):
                    if time.monotonic() >= deadline:
                        break
                    if not is_possible(world, fault):
                        continue
                    await restart_brokers(world, report)
                    start = time.time()
                    await inject(world, made, fault, random.Random(f"{seed}/{len(done)}"))
                    done.append(Injected(fault, start, time.time()))
                    took = await all_back(world, done[-1].end, report)
                    report(f"{fault}: all roles back after {took:.1f} s")
            world.silence_sources()
            logs = await gather(
                world.stage, made.samples, timeout=60, keep=lambda record: not is_hostile(record)
            )
            archived = await world.archived_log()
        limits = await asyncio.to_thread(world.undo_limits)
    evictions = await world.evictions()
    run = Observation(
        settings=world.stage.settings, logs=logs, samples=made.samples, faults=done,
        signs={role: world.signs[role] for role in world.expected_signs()},
        offers=world.offers, allowed=list(allowed_offers(logs)),
        evictions=evictions, memory=world.memory,
        exit_codes={name: role.exit_codes for name, role in world.roles.items()},
        node_limits=limits, archived=archived,
    )  # fmt: skip
    counts = run.evidence | {
        "changes of alerts": sum(map(len, logs["alerts"].values())),
        "relief plans": await relief_plans(world),
    }
    report(f"{len(done)} faults, " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    for process, slope in growth(run.memory).items():
        report(f"{process}: {run.memory[process][-1][1]:.0f} MiB, {slope:+.1f} an hour")
    return problems(run)


async def relief_plans(world: World) -> int:
    """The number of plans of the planner."""
    plans = await messages(world.stage.settings.kafka, EVICTION_PLANS)
    return sum(b'"planner":"planner"' in (plan.value or b"") for plan in plans)


def is_possible(world: World, fault: Fault) -> bool:
    """Whether the run has the target: a run with one instance of each role has half of them."""
    return fault.target in world.roles or fault.target not in PROCESSES


async def all_back(world: World, moment: float, report: Report) -> float:
    """Wait until every role works, or no longer than twice the limit; return how long it took."""

    async def work() -> bool:
        await restart_brokers(world, report)
        return world.all_work_since(moment)

    with contextlib.suppress(AssertionError):
        await until(work, 2 * BACK_SECONDS)
    return time.time() - moment


async def restart_brokers(world: World, report: Report) -> None:
    """Restart brokers that ended, as Kubernetes does: one whose disk was full may end later."""
    for number, broker in enumerate(world.brokers):
        if broker.pid is None:
            report(f"broker-{number} had ended; its log ends:\n{broker.log_tail()}")
            await asyncio.to_thread(broker.start)


def state_of(world: World) -> str:
    """The ends of the logs of roles that were never seen to work."""
    silent = [role for role in world.expected_signs() if not world.signs[role]]
    return "\n".join(
        f"-- {name}\n{role.tail()}"
        for name, role in world.roles.items()
        if name.startswith(tuple(silent))
    )


async def inject(world: World, made: Feed, fault: Fault, rng: random.Random) -> None:
    """Begin a fault, wait, and end it."""
    if fault.kind.startswith("broker ") or fault.target.startswith("broker"):
        await disturb_broker(world, fault)
    elif fault.target in ("api", "etcd"):
        await disturb_api(world, fault)
    elif fault.kind == "storm":
        await storm(world, made, fault, rng)
    elif fault.kind == "hostile records":
        await be_hostile(world, made, fault, rng)
    elif fault.kind == "clock step":
        file = world.folder / f"{fault.target}.clock"
        file.write_text(str(fault.step_seconds))
        await asyncio.sleep(fault.seconds)
        file.write_text("0")
    else:
        await disturb_role(world, fault)


async def disturb_role(world: World, fault: Fault) -> None:
    role = world.roles[fault.target]
    if fault.kind == "kill":
        role.kill()
    elif fault.kind == "pause":
        role.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        role.signal(signal.SIGCONT)
    elif role.process is not None:
        limit_files(role.process.pid, FULL_DISK_BYTES)
        await asyncio.sleep(fault.seconds)
        limit_files(role.process.pid, None)


async def disturb_broker(world: World, fault: Fault) -> None:
    broker = world.brokers[int(fault.target.rpartition("-")[2])]
    pid = broker.pid
    assert pid is not None
    match fault.kind:
        case "broker killed":
            await asyncio.to_thread(broker.kill)
        case "broker stopped":
            await asyncio.to_thread(broker.stop)
        case "broker paused":
            with stopped(pid):
                await asyncio.sleep(fault.seconds)
            return
        case _:
            limit_files(pid, FULL_DISK_BYTES)
    await asyncio.sleep(fault.seconds)
    limit_files(pid, None)
    # A broker whose disk is full ends.
    await asyncio.to_thread(broker.start)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def disturb_api(world: World, fault: Fault) -> None:
    if fault.kind in ("api killed", "etcd killed"):
        part = world.plane.api if fault.target == "api" else world.plane.components["etcd"]
        await asyncio.to_thread(part.kill)
        await asyncio.sleep(fault.seconds)
        part.start()
        await asyncio.to_thread(world.plane.wait_ready, time.monotonic() + 60)
        return
    world.proxy.mode = "slow" if fault.kind == "api slow" else "lying"
    await asyncio.sleep(fault.seconds)
    world.proxy.mode = "as drawn"


async def storm(world: World, made: Feed, fault: Fault, rng: random.Random) -> None:
    """Plan all evictions at once while requests fail, and kill evictors that have evicted a pod."""
    world.proxy.is_fair, world.kills_evictors = False, True
    await world.plan_everything(made.producer, rng)
    await asyncio.sleep(fault.seconds)
    with contextlib.suppress(AssertionError):  # all pods may have been evicted
        await until(lambda: not world.kills_evictors, STORM_SECONDS)
    world.proxy.is_fair, world.kills_evictors = True, False
    # Evictors that started again wait for the end of the lease of those that were killed.
    await asyncio.sleep(LeaseTerms().duration_seconds)


async def be_hostile(world: World, made: Feed, fault: Fault, rng: random.Random) -> None:
    """Send hostile records to every topic, or create hostile objects for a while."""
    if fault.target == "topics":
        nodes, now_ms = world.load.nodes, int(time.time() * 1000)
        await send_records(world.stage, made.producer, rng, nodes, now_ms)
        await asyncio.sleep(fault.seconds)
        return
    manifest = listing(hostile_objects())
    await asyncio.to_thread(world.plane.kubectl, "create", "-f", "-", stdin=manifest)
    await asyncio.sleep(fault.seconds)
    await asyncio.to_thread(world.plane.kubectl, "delete", "-f", "-", "--force", stdin=manifest)


def allowed_offers(logs: Logs) -> Iterator[Offer]:
    """Yield what each record of resources allows from its append on."""
    for records in logs["resources"].values():
        for record in records:
            if record.value is None:
                continue
            resources = decode_json(NodeResourcesRecord, record.value)
            absent = (ABSENT,) * len(EXTENDED_RESOURCES)
            case = OfferInputs(resources.strategy, resources, {}, absent, 0.0)
            (offer,) = offers_now([case], parse_time(resources.as_of))
            yield Offer(record.at, resources.node, tuple(offer.amounts))


def write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument(
        "--cycles", type=int, default=2, help="of load in the closed loop, a minute and a half each"
    )
    parser.add_argument(
        "--logs", type=Path,
        help="folder for logs and memory.csv, by default one that a run without a problem removes",
    )  # fmt: skip
    given = parser.parse_args()
    # Clients of this process meet the faults, too.
    for noisy in ("aiohttp", "aiokafka", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    with (
        local_control_plane(audit_policy=AUDIT_POLICY) as plane,
        local_cluster() as cluster,
    ):
        for name in NAMESPACES:
            plane.kubectl("create", "namespace", name)
        logs = given.logs.resolve() if given.logs else Path(tempfile.mkdtemp(prefix="chaos-"))
        storm_logs, loop_logs = logs / "storm", logs / "loop"
        for folder in (storm_logs, loop_logs):
            folder.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(
            chaos(
                plane, cluster, logs, seed=given.seed, seconds=60 * given.minutes,
                nodes=given.nodes, instances=given.instances, report=write_line,
            )
        )  # fmt: skip
        kafka = KafkaSettings(
            bootstrap_servers=cluster.bootstrap_servers, topic_prefix="storm", partitions=2,
            replication_factor=BROKERS,
        )  # fmt: skip
        result = asyncio.run(run_storm(plane, kafka, storm_logs, given.seed, STORM_EVICTIONS))
        write_line(f"storm: {len(result.evictions)} evictions, {sorted(result.failures)}")
        found += result.problems
        with asking_plane() as (asking, url):
            kafka = msgspec.structs.replace(kafka, topic_prefix="loop")
            loop = asyncio.run(run_loop(asking, url, kafka, loop_logs, cycles=given.cycles))
        write_line(f"loop: {len(loop.evictions)} evictions, {loop.placed_anew} pods placed anew")
        found += [f"loop: {violation}" for violation in loop.violations]
    for problem in found:
        write_line(problem)
    if found:
        sys.exit(
            f"{len(found)} problems, logs in {logs}; "
            f"reproduce with: make chaos ARGS='--seed {given.seed}'"
        )
    if not given.logs:
        shutil.rmtree(logs)
    write_line(f"no problem with seed {given.seed}")


if __name__ == "__main__":
    main()
