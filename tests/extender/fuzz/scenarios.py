"""Scenarios: records, requests and faults of an extender, in every order."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.extender.fuzz import broken, documented, questions
from tests.extender.fuzz.changes import Change, Drop, Pass
from tests.extender.fuzz.documented import junk
from tests.extender.fuzz.fleet import Fleet
from tests.extender.fuzz.questions import Asked
from tests.extender.fuzz.steps import (
    DOCUMENT,
    Broken,
    Documented,
    Explain,
    Filter,
    Form,
    Junk,
    Large,
    Many,
    Preempt,
    Prioritize,
    Schedule,
    Together,
    Unready,
)

forms = st.builds(Form, st.booleans(), st.integers(0, 3))
names = st.lists(
    st.sampled_from(questions.NODES) | st.sampled_from(questions.STRANGERS), max_size=9
)
of_records = (
    st.builds(
        Change, questions.states, questions.ages, st.integers(0, 9).map(lambda luck: luck == 0)
    )
    | st.builds(Change, questions.nodes)
    | st.builds(Change, questions.offers, questions.ages)
    | st.builds(Change, questions.views)
    | st.builds(Change, questions.pods, questions.since)
    | st.builds(Change, questions.pods, questions.since)
)
drops = st.builds(
    Drop, st.sampled_from(["node-state", "nodes", "resources", "node-views"]), questions.names
) | st.builds(Drop, st.just("pods"), st.sampled_from(questions.UIDS))
asked = questions.asked | st.builds(
    Asked.of_uid, questions.asked, st.sampled_from(["new", *questions.UIDS])
)
requests = documented.requests(DOCUMENT)
without_wait = requests.filter(lambda drawn: "wait=" not in drawn.url)

Step = Any
changes_of_records: st.SearchStrategy[Step] = of_records | drops
no_question = (
    broken.nested | broken.nulls | st.binary(max_size=200) | junk
    | st.dictionaries(
        st.sampled_from(["Pod", "NodeNames", "nodes", "NodeNameToVictims", "podRecord"]), junk
    )
)  # fmt: skip
victims = st.dictionaries(
    questions.names, st.lists(st.sampled_from([*questions.UIDS, "x"]), max_size=4), max_size=4
)
passing = st.builds(Pass, st.sampled_from([0.0, 1.0, 2.0, 4.0, 5.0, 200.0]))
verbs = st.sampled_from(["filter", "prioritize", "preempt", "v1/explain"])
schedule = st.builds(
    Schedule, questions.asked, names, forms, st.lists(of_records, max_size=2), st.booleans()
)
documents = st.builds(Documented, requests)
usual: tuple[st.SearchStrategy[Step], ...] = (
    changes_of_records, changes_of_records, changes_of_records, passing, schedule, schedule,
    st.builds(Filter, asked, names, forms),
    st.builds(Prioritize, asked, names, forms),
    st.builds(Preempt, asked, victims, st.integers(0, 3), st.booleans()),
    st.builds(Explain, asked, st.none() | names, st.booleans()),
    st.builds(
        Together, st.lists(changes_of_records, min_size=1, max_size=6), questions.asked, names,
        forms,
    ),
    documents, documents, documents,
    st.builds(Junk, verbs, no_question),
    st.builds(Broken, broken.broken),
)  # fmt: skip
rare: tuple[st.SearchStrategy[Step], ...] = (
    st.builds(Many, questions.asked, st.integers(0, 10**6), forms),
    st.builds(Unready, st.lists(without_wait, max_size=3)),
    st.builds(Large, st.integers(1, 7)),
)
# Draw a strategy first, so that each kind of step is equally likely.
step = st.sampled_from(usual).flatmap(lambda drawn: drawn)
scenarios = st.tuples(
    st.lists(changes_of_records, min_size=2, max_size=12),
    st.lists(step, min_size=2, max_size=14),
    st.sampled_from([*[st.none()] * 24, *rare]).flatmap(lambda drawn: drawn),
).map(lambda parts: [*parts[0], *parts[1], *([parts[2]] if parts[2] else [])])


async def play(fleet: Fleet, scenario: Sequence[Step]) -> None:
    """Run a scenario on an extender without records."""
    await fleet.begin()
    for step in scenario:
        await step.run(fleet)
