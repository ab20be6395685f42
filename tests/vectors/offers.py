"""Groups of Mid and Batch: a sample joined with its node's record, and the actuator's decision."""

import json
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from pipeline.processors.join.node_facts import node_facts
from pipeline.processors.kubernetes.node_reservation import ANNOTATION
from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.overcommit.node_offers import offers, records
from pipeline.processors.overcommit.offer_decision import Offer, offers_now
from pipeline.processors.overcommit.offer_decision import OfferInputs as OfferInputs
from pipeline.processors.overcommit.status_patch import ABSENT, EXTENDED_RESOURCES, status_patch
from pipeline.processors.overcommit.third_party import ALLOCATIONS
from pipeline.processors.overcommit.window_columns import Prod
from pipeline.processors.policy.colocation_config import COLOCATION, DEFAULTS
from pipeline.processors.policy.config_sections import merge
from pipeline.processors.policy.normalization import RATIO
from pipeline.processors.policy.policy_in_force import overcommit_settings
from pipeline.processors.policy.springtide_config import SpringtideConfig
from pipeline.times import format_time
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources, whole_bytes
from pipeline.topics.samples import SYSTEM_TIER
from tests.processors.joined import END_MS, Row, header, joined, logged, view_of
from tests.vectors.cases import Case, plain
from tests.vectors.runner import Difference, NotBuiltError, group
from tests.vectors.world import World, container, placement, pod

_NAMES = ("batch_cpu_milli", "batch_memory_bytes", "mid_cpu_milli", "mid_memory_bytes")
_KEYS = ("cpu_milli", "memory_bytes")
_HAS_ALL = (2**53,) * len(EXTENDED_RESOURCES)
_LISTED = ("Running", "Pending")


_PATH = "sample_join.join, node_offers.offers and records, offer_decision.offers_now"
_DECISION = "offer_decision.offers_now"


def _resources(amounts: Case | None) -> Resources:
    cpu, memory = ((amounts or {}).get(key) for key in _KEYS)
    return Resources(cpu_millicores=cpu, memory_bytes=memory)


def annotated(reservation: Case) -> dict[str, str]:
    """The annotation of a reservation."""
    given = plain(reservation)
    resources = given.pop("resources", None) or {}
    if resources:
        given["resources"] = {
            **({"cpu": f"{resources['cpu_milli']}m"} if "cpu_milli" in resources else {}),
            **({"memory": resources["memory_bytes"]} if "memory_bytes" in resources else {}),
        }
    return {ANNOTATION: json.dumps(given)}


def _node(tree: Case, overcommit: Overcommit, host_apps: Mapping[str, str]) -> NodeRecord:
    reservation = tree.get("reservation")
    return NodeRecord(
        node="node-1", capacity=_resources(tree.get("capacity")),
        allocatable=_resources(tree.get("allocatable")),
        annotations={} if reservation is None else annotated(reservation), overcommit=overcommit,
        host_apps=dict(host_apps),
    )  # fmt: skip


def _uid(tree: Case) -> str:
    return f"{tree['namespace']}.{tree['name']}"


def _pod(tree: Case) -> PodRecord:
    """A Pod of the list, as the watcher publishes it."""
    requests = dict(zip(("cpu", "memory"), map((tree["requests"] or {}).get, _KEYS), strict=True))
    manifest = pod(
        _uid(tree), [container(requests, {})], phase=tree["phase"], node="node-1",
        priority_class=tree.get("priority_class_label"), koord_qos=tree.get("koord_qos"),
        kube_qos=tree["kube_qos"], priority=tree.get("priority"),
    )  # fmt: skip
    return pod_record(manifest)


def _reported_alone(metric: Case) -> PodRecord:
    """A pod that has ended and is still reported: its record keeps its class."""
    label = metric.get("priority_class") or None
    manifest = pod(_uid(metric), [], priority_class=label, phase="Succeeded", node="node-1")
    return pod_record(manifest)


def _row(kind: str, id: str, amounts: Case | None) -> Row:
    cpu, memory = ((amounts or {}).get(key) for key in _KEYS)
    row: Row = {"kind": kind, "id": id, "coverage": 1.0}
    row |= {} if cpu is None else {"cpu_cores_avg": cpu / 1000}
    return row | ({} if memory is None else {"memory_bytes_avg": float(memory)})


def _strategy(tree: Case) -> Overcommit:
    """A strategy by upstream's rules, where the product's own settings would differ."""
    ours = SpringtideConfig(promise_once=False, mid_formula="source", buffer_percent=0)
    return overcommit_settings(merge(DEFAULTS, COLOCATION.convert(tree)), ours)


def _record(case: Case) -> NodeResourcesRecord:
    """What the worker publishes after a window with the usage of the case."""
    metric = case.get("node_metric") or {}
    listed = [_pod(entry) for entry in case.get("pods") or ()]
    known = {record.uid: record for record in listed}
    reported = {}
    for entry in metric.get("pods") or ():
        name = _uid(entry)
        plain(entry)
        reported[name] = entry["usage"]
        known.setdefault(name, _reported_alone(entry))
    apps = {entry["name"]: entry for entry in metric.get("host_apps") or ()}
    classes = {name: entry["priority_class"].removeprefix("koord-") for name, entry in apps.items()}
    # As in the conventions of the cases, a missing amount is 0.
    system = dict.fromkeys(_KEYS, 0) | plain(metric.get("system_usage") or {})
    rows = [
        _row("node", "", metric.get("node_usage")),
        _row("tier", SYSTEM_TIER, system),
        *(_row("pod", name, used) for name, used in reported.items()),
        *(_row("host_app", name, entry["usage"]) for name, entry in apps.items()),
    ]
    node = _node(case["node"], _strategy(plain(case["strategy"])), classes)
    view = view_of(*known.values(), record=node)
    window = logged(joined(*rows, view=view, of=header()))
    unknown = np.full((1, 2), np.nan)
    reclaimable = metric.get("prod_reclaimable")
    amounts = [[(reclaimable or {}).get(key) or 0 for key in _KEYS]]
    prod = Prod(np.array(amounts, float), unknown)
    batch = WindowBatch([window])
    at = {"generation": 1, "offset": 0, "epoch": 1}
    (record,) = records(batch, offers(batch, prod, [prod]), ["percentile"], [at])
    return record


def _offered(
    record: NodeResourcesRecord | None,
    age_seconds: float,
    *,
    strategy: Overcommit,
    annotations: Mapping[str, str] | None = None,
    amounts: Sequence[int] = _HAS_ALL,
    unchanged_seconds: float = np.nan,
    writes_origin: bool = True,
) -> Offer:
    """What the actuator decides to offer when the record is so old."""
    if record is not None:
        record = msgspec.structs.replace(record, as_of=format_time(END_MS / 1000))
    now = END_MS / 1000 + age_seconds
    case = OfferInputs(
        strategy, record, annotations or {}, amounts, unchanged_seconds, writes_origin
    )
    (offer,) = offers_now([case], now)
    return offer


def _amounts(offer: Offer) -> dict[str, int | None]:
    return {
        name: None if amount == ABSENT else amount
        for name, amount in zip(_NAMES, offer.amounts, strict=True)
    }


def _decided(case: Case, tier: str) -> object:
    """What the actuator offers of a tier after a window with the usage of the case."""
    metric = case["node_metric"]
    age = None if metric is None else metric.get("update_age_seconds")
    record = _record(case)
    offer = _offered(None if age is None else record, age or 0, strategy=record.strategy)
    amounts = {name: amount for name, amount in _amounts(offer).items() if tier in name}
    return {"reset": True} if None in amounts.values() else amounts


def _nothing_without_usage(given: Case, expected: Case) -> Difference | None:
    metric = given.get("node_metric") or {}
    if expected.get("reset") or all((metric.get("node_usage") or {}).get(k) for k in _KEYS):
        return None
    return Difference(
        "a node whose usage is unknown is offered nothing",
        "Mid and Batch are removed from a node until its usage is known again",
        {"reset": True},
    )


@group(_PATH, differs=_nothing_without_usage)
def batch_resource(case: Case) -> object:
    return _decided(case, "batch")


@group(_PATH, differs=_nothing_without_usage)
def mid_resource(case: Case) -> object:
    return _decided(case, "mid")


@group(_DECISION)
def degrade(case: Case) -> object:
    """Whether a node with a record of that age, or none, is offered nothing."""
    tier, metric = case["plugin"], plain(case["node_metric"])
    age = None if metric is None else metric.get("update_age_seconds")
    strategy = Overcommit(degrade_time_minutes=case["degradeTimeMinutes"])
    record = _of_amounts(dict.fromkeys(_NAMES, 1), strategy)
    amounts = _amounts(_offered(None if age is None else record, age or 0, strategy=strategy))
    return {"degrade": amounts[f"{tier}_cpu_milli"] is None}


@group("node_offers.offers and records")
def safety_margin(case: Case) -> object:
    capacity = case["capacity"]
    node = {"capacity": plain(capacity), "allocatable": plain(capacity)}
    record = _record({"strategy": case["strategy"], "node": node})
    margin = record.batch_terms.margin
    return dict(zip(_KEYS, (margin.cpu_millicores, margin.memory_bytes), strict=True))


@group("node_facts, node_offers.offers and records")
def node_reserved(case: Case) -> object:
    if "node" in case:
        record = _record({"strategy": {}, "node": case["node"]})
        reserved = record.batch_terms.reserved
        amounts = reserved.cpu_millicores, reserved.memory_bytes
        return {"reserved": dict(zip(_KEYS, amounts, strict=True))}
    annotation = case["annotation"]
    node = {} if annotation is None else {"reservation": annotation}
    reserved = node_facts(_node(node, Overcommit(), {}), Strategy()).reserved
    known = dict(zip(_KEYS, (reserved.cpu_millicores, reserved.memory_bytes), strict=True))
    return {"reserved": {key: v for key, v in known.items() if v is not None} or None}


@group("Decisions.refusals")
def trim_allocatable(case: Case) -> object:
    """What pods may request of a node with a reservation before the extender refuses them."""
    allocatable = plain(case["allocatable"])
    world = World(placement("LoadAwareScheduling", {}), 0.0)
    native = {"cpu": allocatable["cpu_milli"], "memory": allocatable["memory_bytes"]}
    world.node("n", native, annotations=annotated(case["reservation"]))
    answer = dict(allocatable)
    for key, resource in zip(_KEYS, ("cpu", "memory"), strict=True):
        answer[key] = _largest_request(world, resource, allocatable[key])
    is_trimmed = any(answer[key] < allocatable[key] for key in _KEYS)
    return {"allocatable": answer, "trimmed": is_trimmed}


def _largest_request(world: World, resource: str, most: int) -> int:
    """The largest request up to `most` that filter does not refuse."""
    allowed, refused = 0, most + 1
    while refused - allowed > 1:
        middle = (allowed + refused) // 2
        asked = world.asked(pod("asking", [container({resource: middle}, {})]))
        if world.decisions.refusals(world.candidates(), asked).is_refused.any():
            refused = middle
        else:
            allowed = middle
    return allowed


# -- what is written to nodes


def _of_amounts(amounts: Mapping[str, float], strategy: Overcommit) -> NodeResourcesRecord:
    """A record of the worker with these amounts; fractions are rounded up on reading."""
    whole = [whole_bytes(amounts.get(name, 0)) for name in _NAMES]
    batch, mid = (
        Resources(cpu_millicores=cpu, memory_bytes=memory) for cpu, memory in (whole[:2], whole[2:])
    )
    return NodeResourcesRecord(
        node="n", as_of=format_time(0.0), generation=1, offset=0, epoch=1, strategy=strategy,
        predictor="percentile", window_seconds=30.0, mid=mid, mid_lower_bound=mid, batch=batch,
    )  # fmt: skip


@group(f"{_DECISION}, status_patch")
def node_extended_resources(case: Case) -> object:
    calculated, names = plain(case["calculated"]), case["resources"]
    case.get("reset")
    annotations = {}
    if (ratio := case.get("cpu_normalization_ratio")) is not None:
        annotations[RATIO] = ratio
    if (parties := case.get("third_party")) is not None:
        annotations[ALLOCATIONS] = _taken(plain(parties))
    record = _of_amounts(calculated, Overcommit()) if calculated else None
    offer = _offered(record, 0, strategy=Overcommit(), annotations=annotations)
    patch = status_patch(offer.amounts)["status"]
    assert patch["capacity"] == patch["allocatable"]
    written = dict(zip(_NAMES, map(patch["allocatable"].get, EXTENDED_RESOURCES), strict=True))
    answer: Case = {
        "allocatable": {n: None if written[n] is None else int(written[n]) for n in names}
    }
    if parties is not None:
        origin = json.loads(offer.origin)["resources"]
        answer["origin_allocatable"] = dict(zip(_NAMES, map(int, origin.values()), strict=False))
    return answer


def _taken(parties: list[Case]) -> str:
    names = dict(zip(_NAMES, EXTENDED_RESOURCES, strict=True))
    allocations = [
        entry | {"resources": {names[name]: v for name, v in entry["resources"].items()}}
        for entry in parties
    ]
    return json.dumps({"allocations": allocations})


def _no_write_without_a_change(given: Case, expected: Case) -> Difference | None:
    if not expected["sync"] or given["old"] != given["new"]:
        return None
    return Difference(
        "a status that already has the amounts is not written again, however old it is",
        "the API server gets no write that changes nothing",
        {"sync": False},
    )


@group(_DECISION, differs=_no_write_without_a_change)
def sync_needed(case: Case) -> object:
    """Whether the actuator writes a status that has the old amounts; the names of a case stand for
    cpu and memory of one tier."""
    names = case["names"]
    tier = 2 if any("mid" in name for name in names) else 0
    old, new = plain(case["old"]), plain(case["new"])
    if new and len(new) < len(names):
        raise NotBuiltError("cpu and memory of a tier are offered, or removed, together")
    before, after = [0] * len(EXTENDED_RESOURCES), [0.0] * len(EXTENDED_RESOURCES)
    for index, name in enumerate(names, start=tier):
        before[index] = old.get(name, ABSENT)
        after[index] = new.get(name, 0)
    limit, age = case.get("updateTimeThresholdSeconds"), case.get("last_write_age_seconds", 0)
    strategy = Overcommit(resource_diff_threshold=case["resourceDiffThreshold"])
    if limit is not None:
        strategy = msgspec.structs.replace(strategy, update_time_threshold_seconds=limit)
    record = _of_amounts(dict(zip(_NAMES, after, strict=True)), strategy) if new else None
    offer = _offered(
        record, 0, strategy=strategy, amounts=before, writes_origin=False,
        unchanged_seconds=np.nan if age is None else age,
    )  # fmt: skip
    return {"sync": offer.is_due}
