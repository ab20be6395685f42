"""No request causes a 500, and a valid one gets an answer that the scheduler can read."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import BadRequestError
from pipeline.extender.scheduler_messages import read_question
from tests.extender.conftest import ALL, Post
from tests.extender.scheduler import read_filter

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=10), st.sampled_from(ALL),
)  # fmt: skip
fields = st.sampled_from(["metadata", "name", "items", "ownerReferences", "kind"])
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(fields | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
names = st.lists(st.sampled_from(ALL) | st.text(max_size=8), max_size=8)
node = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": st.sampled_from(ALL)})}, optional={"x": json_values}
)
keys = st.sampled_from(["Pod", "pod", "NodeNames", "nodenames", "Nodes", "NODES", "other"])
bodies = st.dictionaries(
    keys,
    json_values
    | names
    | st.just({})
    | st.fixed_dictionaries({"items": st.lists(node, max_size=4)}),
    max_size=4,
)
valid = st.fixed_dictionaries({"Pod": st.just({})}).flatmap(
    lambda pod: st.one_of(
        names.map(lambda n: pod | {"NodeNames": n}),
        st.lists(node, max_size=6).map(lambda n: pod | {"Nodes": {"items": n}}),
    )
)  # fmt: skip


quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(body=bodies | json_values, path=st.sampled_from(["/filter", "/prioritize"]))
def test_any_json_is_answered(post: Post, body: Any, path: str) -> None:
    sent = msgspec.json.encode(body)
    status, reply = post(path, sent)
    assert status in (200, 400)
    try:
        question = read_question(sent)
    except BadRequestError:
        assert status == 400
        assert reply["Error"]
        return
    assert status == 200
    if path == "/filter":
        outcome = read_filter(
            status, reply, sent=list(question.names), node_cache_capable=question.nodes is None
        )
        assert not outcome.error
        passed, refused = set(outcome.feasible or ()), set(outcome.unresolvable)
        assert passed | refused == set(question.names)
        assert not passed & refused


@quick
@given(body=st.binary(max_size=200))
def test_any_bytes_are_answered(post: Post, body: bytes) -> None:
    status, answer = post("/filter", body)
    assert status in (200, 400)
    assert answer


@quick
@given(body=valid)
def test_answers_are_those_of_a_plain_loop(post: Post, body: dict[str, Any]) -> None:
    question = read_question(msgspec.json.encode(body))
    _, reply = post("/filter", msgspec.json.encode(body))
    expected = [name for name in question.names if name not in ("hot", "full")]
    if question.nodes is None:
        assert reply["NodeNames"] == expected
    else:
        assert [item["metadata"]["name"] for item in reply["Nodes"]["items"]] == expected
        sent = {n["metadata"]["name"]: n for n in reversed(body["Nodes"]["items"])}
        assert reply["Nodes"]["items"] == [sent[name] for name in expected]
    _, scores = post("/prioritize", msgspec.json.encode(body))
    known = {"idle": 8, "busy": 4, "hot": 2, "full": 3}
    assert scores == [{"Host": n, "Score": known.get(n, 0)} for n in question.names]
