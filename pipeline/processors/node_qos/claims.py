"""What features want of cgroups, and the one value that each place gets from these wishes."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from pipeline.processors.node_qos.cgroup_values import Place, Value, narrowest


class Claim(NamedTuple):
    """A feature wants `value` at `place`, for the reason `why` in plain words.

    A feature repeats its claims in each round. A place that no feature claims any longer gets back
    what it had before the first claim.
    """

    place: Place
    value: Value
    feature: str
    why: str


HELD: Final = "as before: a needed input is missing"


def held(
    former: Mapping[Place, Value], feature: str, pods: Collection[str] | None = None
) -> list[Claim]:
    """Repeat the former claims of a feature: all, or those of the pods with these paths and of
    their containers."""
    return [
        Claim(place, value, feature, HELD)
        for place, value in former.items()
        if pods is None or place.path in pods or place.path.rpartition("/")[0] in pods
    ]


class Decision(NamedTuple):
    """The value of a place, with the features whose claims gave it and their reasons."""

    value: Value
    features: tuple[str, ...]
    why: str


def merge_claims(claims: Iterable[Claim]) -> dict[Place, Decision]:
    """One value for each claimed place: the narrowest of all claims to it.

    So two features never undo each other's limits in turn. The features of a decision are those
    whose claim is this value, in the order of their names.
    """
    by_place: dict[Place, list[Claim]] = {}
    for claim in claims:
        by_place.setdefault(claim.place, []).append(claim)
    return {place: _decide(place, wanted) for place, wanted in by_place.items()}


class Merged(NamedTuple):
    """The claims of each feature, and the decisions that they give."""

    claims: Mapping[str, list[Claim]]
    decisions: dict[Place, Decision]

    def then(self, claims: Mapping[str, list[Claim]]) -> "Merged":
        """The same of the next claims. Only places whose claims differ are decided again: from one
        second to the next these are a few of hundreds."""
        changed = {
            claim.place
            for feature in self.claims.keys() | claims.keys()
            if (former := self.claims.get(feature, [])) != (now := claims.get(feature, []))
            for claim in set(former) ^ set(now)
        }
        if not changed:
            return self
        decisions = {place: d for place, d in self.decisions.items() if place not in changed}
        wanted = (claim for some in claims.values() for claim in some if claim.place in changed)
        return Merged(claims, decisions | merge_claims(wanted))


def _decide(place: Place, claims: list[Claim]) -> Decision:
    if len(claims) == 1:  # most of the hundreds of places of a node
        return Decision(claims[0].value, (claims[0].feature,), claims[0].why)
    value = narrowest(place.knob, [claim.value for claim in claims])
    # An intersection of CPU sets may be the value of no claim: then all of them decided.
    deciding = [claim for claim in claims if claim.value == value] or claims
    deciding = sorted(deciding, key=lambda claim: (claim.feature, claim.why))
    features = tuple(dict.fromkeys(claim.feature for claim in deciding))
    return Decision(value, features, "; ".join(dict.fromkeys(c.why for c in deciding)))
