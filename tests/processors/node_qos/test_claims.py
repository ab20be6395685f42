"""One value for each place, from round to round the same as from the claims of one round alone."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.cgroup_values import Knob, Place
from pipeline.processors.node_qos.claims import Claim, Merged, merge_claims

FEATURES = ("a", "b", "c")
PLACES = [Place(path, knob) for path in ("x", "x/y") for knob in (Knob.CPU_QUOTA, Knob.CPU_IDLE)]


def claims_of(feature: str) -> st.SearchStrategy[list[Claim]]:
    values = st.dictionaries(
        st.sampled_from(PLACES), st.tuples(st.integers(0, 3), st.sampled_from(["why", "because"]))
    )
    return values.map(lambda v: [Claim(p, value, feature, why) for p, (value, why) in v.items()])


rounds = st.lists(
    st.fixed_dictionaries({}, optional={name: claims_of(name) for name in FEATURES}), max_size=8
)


@given(rounds)
def test_decisions_of_round_after_round_are_those_of_all_claims(
    claims: list[dict[str, list[Claim]]],
) -> None:
    merged = Merged({}, {})
    for now in claims:
        merged = merged.then(now)
        assert merged.decisions == merge_claims(claim for some in now.values() for claim in some)
        assert merged.then({name: list(some) for name, some in now.items()}) is merged


def test_the_narrowest_claim_decides_and_all_who_want_it_are_named() -> None:
    place = Place("x", Knob.CPU_QUOTA)
    wanted = {"b": 20, "a": 20, "c": 30}
    merged = merge_claims(Claim(place, value, name, f"{name}!") for name, value in wanted.items())
    assert merged[place] == (20, ("a", "b"), "a!; b!")
