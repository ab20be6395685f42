"""Groups of how kube-scheduler and an extender talk.

Most describe what the scheduler does: they hold the tests' stand-in for it to upstream, and are
reported apart. tests/cluster asks the real scheduler.
"""

import json

import msgspec

from pipeline.extender.preempt_messages import preemption_reply, read_preemption
from pipeline.extender.scheduler_messages import read_question
from tests.extender.scheduler import add_scores, is_interested, read_filter
from tests.vectors.cases import Case, plain
from tests.vectors.runner import group

_STAND_IN = "tests.extender.scheduler"


@group(f"{_STAND_IN}, scheduler_messages.read_question", stand_in=True)
def extender_request(case: Case) -> object:
    """The request that the stand-in sends, as the extender reads it."""
    pod, nodes = plain(case["pod"]), plain(case["nodes"])
    names = [node["metadata"]["name"] for node in nodes]
    body: Case = {"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    if case["node_cache_capable"]:
        body |= {"Nodes": None, "NodeNames": names}
    question = read_question(msgspec.json.encode(body))
    assert question.pod.title == f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    assert list(question.names) == names
    read = [json.loads(bytes(node)) for node in question.nodes or ()]
    if not case["node_cache_capable"]:
        body["Nodes"] = body["Nodes"] | {"items": read}
    return {
        "method": "POST", "url": f"{case['url_prefix']}/{case['verb']}",
        "content_type": "application/json", "body": body,
    }  # fmt: skip


@group("preempt_messages.read_preemption, preemption_answer")
def extender_preempt_meta(case: Case) -> object:
    """The scheduler sends UIDs, or whole Pods to an extender without a cache of nodes, and reads
    UIDs."""
    by_uid, by_pod = _preempted(case, is_whole=False), _preempted(case, is_whole=True)
    assert by_uid == by_pod
    return by_uid


def _preempted(case: Case, *, is_whole: bool) -> object:
    victims = {}
    for node, entry in case["victims"].items():
        whole = [{"metadata": {"name": pod["name"], "uid": pod["uid"]}} for pod in entry["pods"]]
        pods = whole if is_whole else [{"UID": pod["uid"]} for pod in entry["pods"]]
        victims[node] = {"Pods": pods, "NumPDBViolations": entry["pdb"]}
    key = "NodeNameToVictims" if is_whole else "NodeNameToMetaVictims"
    question = read_preemption(msgspec.json.encode({"Pod": {"metadata": {}}, key: victims}))
    return msgspec.json.decode(preemption_reply(question, [*victims]))


@group(_STAND_IN, stand_in=True)
def extender_filter_reply(case: Case) -> object:
    return read_filter(
        case["http_status"], plain(case["reply"]), sent=case["sent_nodes"],
        node_cache_capable=case["node_cache_capable"], ignorable=case["ignorable"],
    )._asdict()  # fmt: skip


@group(_STAND_IN, stand_in=True)
def extender_prioritize_total(case: Case) -> object:
    replies = [
        (entry["weight"], entry.get("http_status", 200), plain(entry["reply"]))
        for entry in case["extenders"]
    ]
    return {"totals": add_scores(plain(case["plugin_totals"]), replies)}


@group(_STAND_IN, stand_in=True)
def extender_interest(case: Case) -> object:
    containers = plain([*(case["containers"] or ()), *(case.get("init_containers") or ())])
    return {"called": is_interested(case["managed_resources"], containers)}
