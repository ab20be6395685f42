"""Vector groups of how kube-scheduler and an extender talk.

What each passes through:

- `extender_request`: a question as the scheduler sends it, read by `extender.protocol`; method,
  address and type of content are the scheduler's own, and only said again here.
- `extender_preempt_meta`: `extender.preemption`, asked by UIDs and by whole Pods.
- `extender_filter_reply`, `extender_prioritize_total`, `extender_interest`: what the *scheduler*
  does, so that they hold the tests' stand-in for it (`tests/extender/scheduler.py`) to it; the real
  one is asked in `tests/cluster`.
"""

import json
from typing import Any

import msgspec

from pipeline.extender.preempt_messages import preemption_answer, read_preemption
from pipeline.extender.scheduler_messages import read_question
from tests.extender.scheduler import add_scores, is_interested, read_filter

Case = dict[str, Any]


def extender_request(case: Case) -> object:
    nodes = {"metadata": {}, "items": case["nodes"]}
    body = {"Pod": case["pod"], "Nodes": nodes, "NodeNames": None}
    question = read_question(msgspec.json.encode(body))
    metadata = case["pod"]["metadata"]
    if question.pod.title != f"{metadata['namespace']}/{metadata['name']}":
        raise ValueError(f"the pod is taken for {question.pod.title}")
    if list(question.names) != [node["metadata"]["name"] for node in case["nodes"]]:
        raise ValueError(f"the nodes are taken for {question.names}")
    read = [json.loads(bytes(node)) for node in question.nodes or ()]
    return {
        "method": "POST",
        "url": f"{case['url_prefix']}/{case['verb']}",
        "content_type": "application/json",
        "body": body | {"Nodes": nodes | {"items": read}},
    }


def extender_preempt_meta(case: Case) -> object:
    """A scheduler sends whole Pods to an extender that keeps no nodes, and takes UIDs alone."""
    by_uid, whole = _told(case, is_whole=False), _told(case, is_whole=True)
    if by_uid != whole:
        raise ValueError(f"by UID {by_uid}, by whole Pods {whole}")
    return by_uid


def _told(case: Case, *, is_whole: bool) -> object:
    victims = {}
    for node, of in case["victims"].items():
        entire = [{"metadata": {"name": one["name"], "uid": one["uid"]}} for one in of["pods"]]
        pods = entire if is_whole else [{"UID": one["uid"]} for one in of["pods"]]
        victims[node] = {"Pods": pods, "NumPDBViolations": of["pdb"]}
    key = "NodeNameToVictims" if is_whole else "NodeNameToMetaVictims"
    question = read_preemption(msgspec.json.encode({"Pod": {"metadata": {}}, key: victims}))
    return msgspec.json.decode(preemption_answer(question, [*victims]))


def extender_filter_reply(case: Case) -> object:
    return read_filter(
        case["http_status"],
        case["reply"],
        sent=case["sent_nodes"],
        node_cache_capable=case["node_cache_capable"],
        ignorable=case["ignorable"],
    )._asdict()


def extender_prioritize_total(case: Case) -> object:
    replies = [
        (one["weight"], one.get("http_status", 200), one["reply"]) for one in case["extenders"]
    ]
    return {"totals": add_scores(case["plugin_totals"], replies)}


def extender_interest(case: Case) -> object:
    containers = [*case["containers"], *case.get("init_containers", ())]
    return {"called": is_interested(case["managed_resources"], containers)}


ADAPTERS = {
    function.__name__: function
    for function in (
        extender_request,
        extender_preempt_meta,
        extender_filter_reply,
        extender_prioritize_total,
        extender_interest,
    )
}
