"""Checks of `springtide doctor`: is the policy valid, and do the records of nodes carry it.

The policy is that of `worker.policy_file`, or else of the cluster. Without an API server no check
fails, because many installations have none.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.cli.doctor_check import Check, failed, unread
from pipeline.cli.doctor_feeds import WHO_WRITES, check_usage, first_names, watcher_writes
from pipeline.cli.safe_output import printable
from pipeline.clock import SystemClock
from pipeline.errors import (
    ForbiddenError,
    InvalidPolicyError,
    KubernetesError,
    NotFoundError,
    RecordError,
    SpringtideError,
)
from pipeline.processors.admission import colocation_profile
from pipeline.processors.descheduling.descheduler_config import load_descheduling
from pipeline.processors.eviction import migration_job_object
from pipeline.processors.kubernetes.object_records import OFFERED
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.processors.slo.crd_schema import KINDS, Kind
from pipeline.settings import KafkaSettings, Settings
from pipeline.sources import object_files, simulated_fleet
from pipeline.sources.compacted_writer import all_records
from pipeline.sources.policy_file import (
    config_map_data,
    descheduling_in,
    filter_limits,
    policy_objects,
    read_config_map,
)
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import SOURCE_HEADER, NodeRecord
from pipeline.topics.registry import NODES

if TYPE_CHECKING:
    from pipeline.kube.api_client import Api

_CLUSTER: Final = "cluster"
_FOREIGN: Final = ""
_API_SECONDS: Final = 10.0
_KAFKA_SECONDS: Final = 30.0
# A working watcher needs less time to update the records of all nodes.
_PROPAGATION_SECONDS: Final = 4.0


Leaders = tuple[str | None, str | None, str | None, str | None]
"""The leading watcher, actuator, planner and evictor."""


class PolicyState(NamedTuple):
    """The source of the policy, the parsed policy, and the leaders.

    `policies` is None if a part is invalid: the previous valid value, which only the watcher
    knows, is in force instead. `leader` is the leading watcher, empty if there is none, None if
    unknown; likewise `actuator`, `planner` and `evictor`.
    """

    source: str
    policies: Policies | None
    leader: str | None = None
    actuator: str | None = None
    planner: str | None = None
    evictor: str | None = None


def check_policy(settings: Settings) -> tuple[Check, PolicyState | None]:
    """Check the policy. The state is None if the policy cannot be read."""
    leaders: Leaders = (None, None, None, None)
    try:
        if settings.worker.policy_file is not None:
            source, where = object_files.SOURCE, str(settings.worker.policy_file)
            data: Mapping[str, str] | None = read_config_map(settings.worker.policy_file)
        else:
            cluster = settings.kubernetes
            source, where = _CLUSTER, f"ConfigMap {cluster.config_namespace}/{cluster.config_name}"
            config, leaders = asyncio.run(asyncio.wait_for(_read_cluster(settings), _API_SECONDS))
            data = None if config is None else config_map_data(config, where)
    except InvalidPolicyError as error:
        return failed("policy", error), None
    except ForbiddenError as error:
        todo = "let this user get configmaps and leases, as deploy/chart/rbac/watcher.yaml does"
        return Check("policy", "unknown", error.message, todo), None
    except TimeoutError:
        return Check("policy", "unknown", "not checked: the API server does not answer"), None
    except SpringtideError as error:
        return Check("policy", "unknown", f"not checked: {error.message}", error.hint or ""), None
    if data is None:
        todo = f"make {where}: docs/reference/policy.md; without data it sets the defaults"
        text = f"no {where}: nodes keep the policy of their record, new ones get the defaults"
        return Check("policy", "warn", text, todo), PolicyState(source, None, *leaders)
    policies, problems = load_policies(data, None, filter_limits(settings))
    refused = [problem for problem in problems if not problem.in_force]
    state = PolicyState(source, None if refused else policies, *leaders)
    first = "; ".join(str(problem) for problem in (refused or problems)[:3])
    if refused:
        todo = f"correct {where}; until then the last valid policy stays in force"
        return Check("policy", "fail", f"{len(refused)} not in force: {first}", todo), state
    assert policies.colocation is not None
    colocation = "on" if policies.colocation.cluster.enable else "off"
    if problems:
        todo = "list all problems with springtide policy"
        return Check("policy", "warn", f"{len(problems)} suspicious values: {first}", todo), state
    return Check("policy", "ok", f"{where}; colocation is {colocation}"), state


def check_descheduling(settings: Settings) -> Check:
    """Check the DeschedulerConfiguration of the policy file, or else of the cluster."""
    file, cluster = settings.worker.policy_file, settings.kubernetes
    where = f"ConfigMap {cluster.config_namespace}/{cluster.descheduler_config_name}"
    try:
        if file is not None:
            where = str(file)
            read = descheduling_in(policy_objects(file), file)
        else:
            reading = _read_config_map(
                settings, cluster.config_namespace, cluster.descheduler_config_name
            )
            config = asyncio.run(asyncio.wait_for(reading, _API_SECONDS))
            read = None if config is None else load_descheduling(config.get("data") or {})
    except InvalidPolicyError as error:
        return failed("hot nodes", error)
    except TimeoutError:
        return Check("hot nodes", "unknown", "not checked: the API server does not answer")
    except SpringtideError as error:
        return Check("hot nodes", "unknown", f"not checked: {error.message}", error.hint or "")
    if read is None:
        return Check("hot nodes", "ok", f"no thresholds: {where} has no DeschedulerConfiguration")
    descheduling, problems = read
    refused = [problem for problem in problems if not problem.in_force]
    first = "; ".join(str(problem) for problem in (refused or problems)[:3])
    if refused:
        todo = f"correct {where}; list all problems with springtide policy"
        return Check("hot nodes", "fail", f"{len(refused)} not in force: {first}", todo)
    if problems:
        todo = "list all problems with springtide policy"
        return Check("hot nodes", "warn", f"{len(problems)} suspicious values: {first}", todo)
    detects = descheduling is not None and descheduling.low_node_load is not None
    return Check("hot nodes", "ok", f"{where}; hot nodes are {'' if detects else 'not '}detected")


def check_kill_switch(settings: Settings) -> Check | None:
    """Warn if the ConfigMap exists that stops all evictions; None if it does not, or if that is
    unknown."""
    namespace, name = settings.kubernetes.namespace, settings.evictor.stop_config_map
    try:
        reading = _read_config_map(settings, namespace, name)
        config = asyncio.run(asyncio.wait_for(reading, _API_SECONDS))
    except (SpringtideError, TimeoutError):
        return None
    if config is None:
        return None
    text = f"all evictions are stopped: the ConfigMap {namespace}/{name} exists"
    todo = f"kubectl delete configmap -n {namespace} {name}, to let the evictor evict again"
    return Check("kill switch", "warn", text, todo)


def check_definitions(settings: Settings) -> Check | None:
    """Warn if the API server does not serve a kind that roles read or write; None if it serves all,
    or if that is unknown."""
    kinds = (*KINDS, colocation_profile.DEFINITION, migration_job_object.DEFINITION)
    try:
        missing = asyncio.run(asyncio.wait_for(_not_served(settings, kinds), _API_SECONDS))
    except (SpringtideError, TimeoutError):
        return None
    if not missing:
        return None
    todo = "kubectl apply --server-side -f deploy/chart/crds; a role that needs one ends without it"
    return Check("crds", "warn", f"the API server does not serve {', '.join(missing)}", todo)


async def _not_served(settings: Settings, kinds: Iterable[Kind]) -> list[str]:
    from pipeline.kube.api_client import open_api

    missing = []
    async with open_api(settings.kubernetes, SystemClock(), name="springtide-doctor") as api:
        for kind in kinds:
            try:
                served = await api.get(f"/apis/{kind.group}/v1alpha1")
            except NotFoundError:
                served = {}
            names = [resource.get("name") for resource in served.get("resources") or ()]
            if kind.plural not in names:
                missing.append(f"{kind.plural}.{kind.group}")
    return missing


async def _read_config_map(settings: Settings, namespace: str, name: str) -> Any:
    """Read a ConfigMap; None if it is missing."""
    from pipeline.kube.api_client import open_api

    async with open_api(settings.kubernetes, SystemClock(), name="springtide-doctor") as api:
        try:
            return await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        except NotFoundError:
            return None


async def _read_cluster(settings: Settings) -> tuple[Any, "Leaders"]:
    """Read the ConfigMap (None if missing), and the leaders."""
    from pipeline.kube.api_client import open_api

    cluster = settings.kubernetes
    path = f"/api/v1/namespaces/{cluster.config_namespace}/configmaps/{cluster.config_name}"
    async with open_api(cluster, SystemClock(), name="springtide-doctor") as api:
        try:
            config = await api.get(path)
        except NotFoundError:
            config = None
        watcher, actuator, planner, evictor = [
            await _read_leader(api, cluster.namespace, f"springtide-{role}")
            for role in ("watcher", "actuator", "planner", "evictor")
        ]
        return config, (watcher, actuator, planner, evictor)


async def _read_leader(api: "Api", namespace: str, name: str) -> str | None:
    try:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        return _lease_holder((await api.get(path)).get("spec") or {})
    except NotFoundError:
        return ""
    except KubernetesError:
        return None


def _lease_holder(spec: Mapping[str, Any]) -> str:
    """Return the holder of the lease; empty if it has expired."""
    try:
        renewed = parse_time(spec["renewTime"])
        is_held = time.time() < renewed + 2 * spec["leaseDurationSeconds"]
    except (KeyError, TypeError, ValueError):
        return ""
    return (spec.get("holderIdentity") or "") if is_held else ""


def check_nodes(settings: Settings, state: PolicyState | None) -> Check:
    """Check whether node records come from one source, and carry the policy."""
    try:
        records = _read_node_records(settings.kafka)
        stale = _nodes_without_policy(state, records)
        if stale:
            time.sleep(_PROPAGATION_SECONDS)
            records = _read_node_records(settings.kafka)
            stale = [name for name in _nodes_without_policy(state, records) if name in stale]
    except (SpringtideError, TimeoutError) as error:
        return unread("nodes", "springtide.nodes", error)
    cluster_count, file_count = len(records[_CLUSTER]), len(records[object_files.SOURCE])
    counts = f"{cluster_count} from the cluster, {file_count} from a file"
    leader_note = "" if state is None or not state.leader else f"; {state.leader} leads"
    start = "start springtide watcher"
    if foreign := records[_FOREIGN]:
        names = first_names([printable(key.decode(errors="replace")) for key in foreign])
        text = f"{len(foreign)} record(s) of springtide.nodes are of no watcher or worker: {names}"
        todo = f"restart the watcher: it writes those of its Nodes again; {WHO_WRITES}"
        return Check("nodes", "warn", text, todo)
    if stale:
        names = first_names(stale)
        count = f"{len(stale)} of {len(records[state.source]) if state else 0}"
        text = f"{count} do not carry the policy: {names}{leader_note}"
        if state is not None and state.source == object_files.SOURCE:
            return Check("nodes", "fail", text, "start a worker with worker.nodes_file")
        see_log = "see the log of springtide watcher: it may use another ConfigMap or topic prefix"
        return Check("nodes", "fail", text, start if state and state.leader == "" else see_log)
    if cluster_count and file_count:
        todo = "use one source: unset worker.nodes_file, or stop the watcher"
        return Check("nodes", "warn", counts, todo)
    try:
        writes = watcher_writes(
            settings.kafka, _CLUSTER, may_just_start=bool(state and state.leader)
        )
    except (SpringtideError, TimeoutError) as error:
        return unread("nodes", "springtide.heartbeats", error)
    if writes and not cluster_count and not file_count:
        return Check("nodes", "ok", f"a watcher follows a cluster without Nodes{leader_note}")
    if state is not None and state.leader and not writes and state.source == _CLUSTER:
        todo = "compare kafka.topic_prefix and the log of that watcher: it does not write here"
        return Check("nodes", "warn", f"{counts}{leader_note}, and sends no heartbeats", todo)
    if state is not None and not records[state.source]:
        todo = start if state.source == _CLUSTER else "start a worker with worker.nodes_file"
        return Check(
            "nodes", "warn", f"{counts}: the policy is in force on no node{leader_note}", todo
        )
    if not cluster_count and not file_count:
        todo = f"{start}, or set worker.nodes_file: until then all pods have the class unknown"
        return Check("nodes", "warn", counts, todo)
    if state is not None and state.leader == "" and state.source == _CLUSTER:
        return Check("nodes", "warn", f"{counts}; no watcher leads", start)
    policy_note = "the policy could not be compared"
    if state is not None and state.policies is not None:
        policy_note = "all carry the policy"
    return Check("nodes", "ok", f"{counts}; {policy_note}{leader_note}")


def check_node_usage(settings: Settings) -> Check | None:
    """Check whether the nodes that have records report usage; None without nodes."""
    try:
        records = _read_node_records(settings.kafka)
    except (SpringtideError, TimeoutError) as error:
        return unread("usage", "springtide.nodes", error)
    del records[_FOREIGN]
    names = {key.decode(errors="replace") for known in records.values() for key in known}
    return check_usage(settings.kafka, names) if names else None


def check_actuator(settings: Settings, state: PolicyState) -> Check | None:
    """Check that an actuator leads while Nodes offer resources; None without a cluster."""
    if state.actuator is None:
        return None
    try:
        records = _read_node_records(settings.kafka)
    except (SpringtideError, TimeoutError) as error:
        return unread("actuator", "springtide.nodes", error)
    offer_count = sum(map(_has_offers, records[_CLUSTER].values()))
    if state.actuator:
        return Check("actuator", "ok", f"{state.actuator} leads; {offer_count} Nodes offer")
    if not offer_count:
        return Check("actuator", "ok", "no actuator leads, and no Node offers anything")
    todo = "start springtide actuator; --mode observe removes the offers"
    text = f"{offer_count} Nodes offer Mid or Batch, and no actuator leads to remove stale offers"
    return Check("actuator", "fail", text, todo)


def _has_offers(record: bytes) -> bool:
    try:
        return OFFERED in decode_json(NodeRecord, record).annotations
    except RecordError:
        return False


def _read_node_records(kafka: KafkaSettings) -> dict[str, dict[bytes, bytes]]:
    """The newest records by source and node; those of `_FOREIGN` are of none of ours."""

    async def read() -> dict[str, dict[bytes, bytes]]:
        sources = (_CLUSTER, object_files.SOURCE, simulated_fleet.SOURCE, _FOREIGN)
        records: dict[str, dict[bytes, bytes]] = {source: {} for source in sources}
        async for record in all_records(kafka, NODES):
            for known in records.values():
                known.pop(record.key, None)
            if record.value is not None:
                source = (dict(record.headers).get(SOURCE_HEADER) or b"").decode(errors="replace")
                records.get(source, records[_FOREIGN])[record.key] = record.value
        return records

    return asyncio.run(asyncio.wait_for(read(), _KAFKA_SECONDS))


def _nodes_without_policy(
    state: PolicyState | None, records: Mapping[str, Mapping[bytes, bytes]]
) -> list[str]:
    """Return the nodes whose record does not carry the policy."""
    if state is None or state.policies is None:
        return []
    names = []
    for key, value in records[state.source].items():
        try:
            record = decode_json(NodeRecord, value)
        except RecordError:
            names.append(key.decode(errors="replace"))
            continue
        if with_policy(record, state.policies)[0] != record:
            names.append(record.node)
    return names
