"""Feature gates, written as Kubernetes components take them: `A=true,B=false`."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from pipeline.errors import SettingsError

_GATE = r"[A-Za-z][A-Za-z0-9]*=(true|false)"

FeatureGates = Annotated[
    str,
    Meta(
        pattern=rf"^({_GATE}(,{_GATE})*)?$",
        title="Name=true or Name=false, several separated by commas",
    ),
]


class Gate(NamedTuple):
    """The default of a gate, and its effect in the words of the reference."""

    default: bool
    effect: str


def gates_in_force(given: str, known: Mapping[str, Gate], key: str) -> dict[str, bool]:
    """Every known gate with its value: that of `given`, else its default in `known`.

    `given` is a value of the setting `key`. Raises `SettingsError` for a gate that is not known.
    """
    values = {name: gate.default for name, gate in known.items()}
    for assignment in filter(None, given.split(",")):
        name, _, value = assignment.partition("=")
        if name not in known:
            raise SettingsError(
                f"{key}: there is no gate {name!r:.100}",
                key=key,
                hint=f"gates are {', '.join(known)}",
            )
        values[name] = value == "true"
    return values
