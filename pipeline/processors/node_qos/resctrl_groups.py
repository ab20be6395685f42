"""Groups of resctrl: which share of cache and memory bandwidth each class and pod gets.

Groups and rounding are Koordinator's. A class that is switched off has no group: removing a group
gives its tasks back to the root, which has everything.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pipeline.errors import InvalidPolicyError
from pipeline.processors.node_qos.node_state import NodeState, PodState
from pipeline.processors.node_qos.pod_annotations import read_annotation
from pipeline.processors.node_qos.resctrl_schemata import Schemata, Vendor, bandwidth, way_mask
from pipeline.processors.slo.crd_fields import Document, Percent
from pipeline.processors.slo.nodeslo import QosStrategy, ResctrlQos

ANNOTATION: Final = "node.koordinator.sh/resctrl"
POD_PREFIX: Final = "koordlet-"

_CLASSES: Final = {"LSR": "lsr_class", "LS": "ls_class", "BE": "be_class"}
_CLASS_OF_QOS: Final = {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}


class ResctrlInfo(NamedTuple):
    """What the kernel says about its CPUs. `l3_ids` or `mb_ids` are empty without the ability to
    share cache or bandwidth; `max_groups` counts the root."""

    vendor: Vendor
    full_mask: int
    min_ways: int
    l3_ids: frozenset[int]
    mb_ids: frozenset[int]
    max_groups: int


class ResctrlGroup(NamedTuple):
    """A group with its schemata, and the cgroups whose tasks are in it."""

    name: str
    schemata: Schemata
    cgroups: tuple[str, ...]


class _CacheShare(Document, frozen=True, kw_only=True):
    range: tuple[Percent, ...] | None = None
    percent: Percent | None = None


class _CacheShareById(_CacheShare, frozen=True, kw_only=True):
    cache_id: int


class _Shares(Document, frozen=True, kw_only=True):
    schemata: _CacheShare | None = None
    schemata_per_cache: tuple[_CacheShareById, ...] | None = None


class PodResctrl(Document, frozen=True, kw_only=True):
    """The annotation of a pod: ranges of the cache and percentages of bandwidth, for all caches and
    for single ones."""

    llc: _Shares | None = None
    mb: _Shares | None = None


def resctrl_groups(state: NodeState, info: ResctrlInfo) -> tuple[ResctrlGroup, ...] | None:
    """The groups that the policy and the pods' annotations want; None before the first policy.

    The CPU has few groups: those of classes come first, then those of pods by UID. A pod without a
    group of its own is in that of its class.
    """
    strategy = state.slo and state.slo.resource_qos_strategy
    if not isinstance(strategy, QosStrategy):
        return None
    own = dict(_own_groups(state, info))
    shared = {
        name: class_schemata(rules, info)
        for name, field in _CLASSES.items()
        if (rules := _class_rules(strategy, field)) is not None
    }
    room = max(info.max_groups - 1 - len(shared), 0)
    own = dict(sorted(own.items())[:room])
    members = dict[str, list[str]]()
    for pod in state.listed_pods():
        if pod.phase == "Running" and pod.uid not in own:
            members.setdefault(_CLASS_OF_QOS.get(pod.qos, ""), []).append(pod.path)
    groups = [
        ResctrlGroup(name, schemata, tuple(members.get(name, ())))
        for name, schemata in shared.items()
    ]
    paths = {pod.uid: pod.path for pod in state.pods}
    groups += [ResctrlGroup(POD_PREFIX + uid, own[uid], (paths[uid],)) for uid in own]
    return tuple(groups)


def kept_groups(state: NodeState) -> dict[str, str]:
    """Pods that run, but that the view does not have now, by the name that a group of their own
    has: such a group, and the group of their tasks, stay as they are."""
    return {POD_PREFIX + pod.uid: pod.path for pod in state.pods if not pod.listed}


def class_schemata(rules: ResctrlQos, info: ResctrlInfo) -> Schemata:
    """The schemata of a class: its range of the cache, by default all, and its bandwidth. A range
    that is not valid changes nothing."""
    start = 0 if rules.cat_range_start_percent is None else rules.cat_range_start_percent
    end = 100 if rules.cat_range_end_percent is None else rules.cat_range_end_percent
    amount = bandwidth(info.vendor, rules.mba_percent)
    return Schemata(
        dict.fromkeys(info.l3_ids, mask) if (mask := _mask((start, end), info)) else {},
        {} if amount is None else dict.fromkeys(info.mb_ids, amount),
    )


def _class_rules(strategy: QosStrategy, field: str) -> ResctrlQos | None:
    rules = getattr(strategy, field)
    resctrl: ResctrlQos | None = rules and rules.resctrl_qos
    return resctrl if resctrl and resctrl.enable else None


def _own_groups(state: NodeState, info: ResctrlInfo) -> Iterator[tuple[str, Schemata]]:
    for pod in state.listed_pods():
        if pod.phase == "Running" and (schemata := pod_schemata(pod, info)) is not None:
            yield pod.uid, schemata


def pod_schemata(pod: PodState, info: ResctrlInfo) -> Schemata | None:
    """The schemata of a pod's annotation; None without a valid one."""
    own = read_annotation(pod.annotations, ANNOTATION, PodResctrl)
    if own is None:
        return None
    llc, mb = (_by_id(own.llc, info.l3_ids), _by_id(own.mb, info.mb_ids))
    masks = {id: _mask(share.range, info) for id, share in llc.items() if share.range}
    amounts = {id: bandwidth(info.vendor, share.percent) for id, share in mb.items()}
    if None in masks.values() or not any((masks, amounts)):
        return None
    return Schemata(
        {id: mask for id, mask in masks.items() if mask is not None},
        {id: amount for id, amount in amounts.items() if amount is not None},
    )


def _by_id(shares: _Shares | None, ids: frozenset[int]) -> Mapping[int, _CacheShare]:
    if shares is None:
        return {}
    everywhere = {} if shares.schemata is None else dict.fromkeys(ids, shares.schemata)
    single = {share.cache_id: share for share in shares.schemata_per_cache or ()}
    return everywhere | {id: share for id, share in single.items() if id in ids}


def _mask(share: tuple[int, ...], info: ResctrlInfo) -> int | None:
    if len(share) != 2:
        return None
    try:
        return way_mask(info.full_mask, *share, info.min_ways)
    except InvalidPolicyError:
        return None
