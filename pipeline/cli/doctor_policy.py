"""What `springtide doctor` says of the policy: what is wrong with it, and whether nodes carry it.

The policy is that of `worker.policy_file`, if it is set, else that of the cluster. Where there is
no API server nothing fails: many installations have none.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.cli.doctor_check import Check, failed
from pipeline.clock import SystemClock
from pipeline.errors import (
    ForbiddenError,
    InvalidPolicyError,
    KubernetesError,
    NotFoundError,
    RecordError,
    SpringtideError,
)
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources import object_files
from pipeline.sources.compacted_writer import read_back
from pipeline.sources.policy_file import data_of, filter_limits, read_config_map
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODES

if TYPE_CHECKING:
    from pipeline.kube.api_client import Api

LEASE: Final = "springtide-watcher"
ACTUATOR: Final = "springtide-actuator"
_OFFERED: Final = "springtide/offered"
_CLUSTER: Final = "cluster"
_API_SECONDS: Final = 10.0
_KAFKA_SECONDS: Final = 30.0
# A watcher that works has an edit on every node's record in less.
_IN_FORCE_SECONDS: Final = 4.0


class Given(NamedTuple):
    """Where the policy is from, and what its parts say that are in force; None where a part is not,
    and nobody but the watcher knows what holds instead. `leader` is the watcher that leads, empty
    if none does, None if that is not known; so is `actuator`."""

    source: str
    policies: Policies | None
    leader: str | None = None
    actuator: str | None = None


def policy(settings: Settings) -> tuple[Check, Given | None]:
    """What is wrong with the policy; nothing is given where there is none to look at."""
    leader = actuator = None
    try:
        if settings.worker.policy_file is not None:
            source, where = object_files.SOURCE, str(settings.worker.policy_file)
            data: Mapping[str, str] | None = read_config_map(settings.worker.policy_file)
        else:
            of = settings.kubernetes
            source, where = _CLUSTER, f"ConfigMap {of.config_namespace}/{of.config_name}"
            config, leader, actuator = asyncio.run(asyncio.wait_for(_ask(settings), _API_SECONDS))
            data = None if config is None else data_of(config, where)
    except InvalidPolicyError as error:
        return failed("policy", error), None
    except ForbiddenError as error:
        todo = "let this user get configmaps and leases, as deploy/rbac/watcher.yaml does"
        return Check("policy", "unknown", error.message, todo), None
    except TimeoutError:
        return Check("policy", "unknown", "not looked at: the API server does not answer"), None
    except SpringtideError as error:
        return Check("policy", "unknown", f"not looked at: {error.message}", error.hint or ""), None
    policies, problems = load_policies(data, None, filter_limits(settings))
    refused = [problem for problem in problems if not problem.taken]
    given = Given(source, None if refused else policies, leader, actuator)
    first = "; ".join(str(problem) for problem in (refused or problems)[:3])
    if refused:
        todo = f"mend {where}; until then what was good before holds"
        return Check("policy", "fail", f"{len(refused)} not in force: {first}", todo), given
    assert policies.colocation is not None
    state = "on" if policies.colocation.cluster.enable else "off"
    if data is None:
        todo = f"make {where}: docs/reference/policy.md; without it the defaults hold"
        return Check("policy", "warn", f"no {where}; colocation is off", todo), given
    if problems:
        todo = "springtide policy shows it with all its problems"
        return Check("policy", "warn", f"{len(problems)} hardly meant: {first}", todo), given
    return Check("policy", "ok", f"{where}; colocation is {state}"), given


async def _ask(settings: Settings) -> tuple[Any, str | None, str | None]:
    """The ConfigMap, None if there is none, and which watcher and which actuator lead."""
    from pipeline.kube.api_client import open_api

    of = settings.kubernetes
    path = f"/api/v1/namespaces/{of.config_namespace}/configmaps/{of.config_name}"
    async with open_api(of, SystemClock()) as api:
        try:
            config = await api.get(path)
        except NotFoundError:
            config = None
        return config, *[await _holder(api, of.namespace, name) for name in (LEASE, ACTUATOR)]


async def _holder(api: "Api", namespace: str, name: str) -> str | None:
    try:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        return _leader((await api.get(path)).get("spec") or {})
    except NotFoundError:
        return ""
    except KubernetesError:
        return None


def _leader(spec: Mapping[str, Any]) -> str:
    """Who holds the lease, empty if nobody has renewed it for as long as it lasts."""
    try:
        renewed = parse_time(spec["renewTime"])
        is_held = time.time() < renewed + 2 * spec["leaseDurationSeconds"]
    except (KeyError, TypeError, ValueError):
        return ""
    return (spec.get("holderIdentity") or "") if is_held else ""


def nodes(settings: Settings, given: Given | None) -> Check:
    """Whether nodes are known, from one source, and carry the policy that is given."""
    try:
        found = asyncio.run(asyncio.wait_for(_records(settings.kafka), _KAFKA_SECONDS))
        stale = _without(given, found)
        if stale:
            time.sleep(_IN_FORCE_SECONDS)
            found = asyncio.run(asyncio.wait_for(_records(settings.kafka), _KAFKA_SECONDS))
            stale = [name for name in _without(given, found) if name in stale]
    except (SpringtideError, TimeoutError) as error:
        return Check("nodes", "unknown", f"springtide.nodes cannot be read: {error}")
    of_cluster, of_file = len(found[_CLUSTER]), len(found[object_files.SOURCE])
    said = f"{of_cluster} from the cluster, {of_file} from a file"
    leads = "" if given is None or not given.leader else f"; {given.leader} leads"
    start = "start springtide watcher"
    if stale:
        names = ", ".join(stale[:3]) + (", ..." if len(stale) > 3 else "")
        count = f"{len(stale)} of {len(found[given.source]) if given else 0}"
        text = f"{count} do not carry the policy: {names}{leads}"
        if given is not None and given.source == object_files.SOURCE:
            return Check("nodes", "fail", text, "is a worker running with worker.nodes_file?")
        look = "see the log of springtide watcher; it may follow another ConfigMap or prefix"
        return Check("nodes", "fail", text, start if given and given.leader == "" else look)
    if of_cluster and of_file:
        todo = "let one source speak: unset worker.nodes_file, or stop the watcher"
        return Check("nodes", "warn", said, todo)
    if given is not None and not found[given.source]:
        todo = start if given.source == _CLUSTER else "start a worker with worker.nodes_file"
        return Check("nodes", "warn", f"{said}: the policy is in force nowhere{leads}", todo)
    if not of_cluster and not of_file:
        todo = f"{start}, or set worker.nodes_file: pods count as unknown until then"
        return Check("nodes", "warn", said, todo)
    if given is not None and given.leader == "":
        return Check("nodes", "warn", f"{said}; no watcher leads", start)
    carry = "the policy could not be compared"
    if given is not None and given.policies is not None:
        carry = "all carry the policy"
    return Check("nodes", "ok", f"{said}; {carry}{leads}")


def actuator(settings: Settings, given: Given) -> Check | None:
    """Whether somebody takes back what Nodes offer; None where there is no cluster to ask."""
    if given.actuator is None:
        return None
    try:
        found = asyncio.run(asyncio.wait_for(_records(settings.kafka), _KAFKA_SECONDS))
    except (SpringtideError, TimeoutError) as error:
        return Check("actuator", "unknown", f"springtide.nodes cannot be read: {error}")
    offering = sum(map(_is_offering, found[_CLUSTER].values()))
    if given.actuator:
        return Check("actuator", "ok", f"{given.actuator} leads; {offering} Nodes offer")
    if not offering:
        return Check("actuator", "ok", "none leads, and no Node offers anything")
    todo = "start springtide actuator; --mode observe takes all of it back"
    text = f"{offering} Nodes offer Mid or Batch, and no actuator leads that would take it back"
    return Check("actuator", "fail", text, todo)


def _is_offering(record: bytes) -> bool:
    try:
        return _OFFERED in decode_json(NodeRecord, record).annotations
    except RecordError:
        return False


async def _records(kafka: KafkaSettings) -> dict[str, dict[bytes, bytes]]:
    return {
        source: await read_back(kafka, NODES, source) for source in (_CLUSTER, object_files.SOURCE)
    }


def _without(given: Given | None, found: Mapping[str, Mapping[bytes, bytes]]) -> list[str]:
    """Nodes whose record says something else than the policy comes to for them."""
    if given is None or given.policies is None:
        return []
    names = []
    for key, value in found[given.source].items():
        try:
            record = decode_json(NodeRecord, value)
        except RecordError:
            names.append(key.decode(errors="replace"))
            continue
        if with_policy(record, given.policies)[0] != record:
            names.append(record.node)
    return names
