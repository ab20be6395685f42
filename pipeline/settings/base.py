"""Types of settings: checked names and numbers, secrets, sections.

Every number has bounds, so that a typing error is refused at the start, and no code behind a
setting has to handle infinite or absurd values.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

SECONDS_OF_A_DAY = 86_400
_SECONDS_OF_A_YEAR = 31_536_000

# Characters and length of an RFC 1123 subdomain, which the API server requires of names.
NODE_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_SERVER = rf"([^\s,:\[\]/]+|\[[0-9a-fA-F:]+\]):{_PORT}"
HTTP_ADDRESS = (
    rf"https?://([^\s,:\[\]/?#@]+|\[[0-9a-fA-F:]+\])(:{_PORT})?(/[^\s?#,]*)?"
)  # fmt: skip
_SERVERS = rf"^{_SERVER}(,{_SERVER})*$"

Port = Annotated[int, Meta(ge=0, le=65535)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Seconds = Annotated[float, Meta(ge=0, le=_SECONDS_OF_A_YEAR)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=_SECONDS_OF_A_YEAR)]
Text = Annotated[str, Meta(min_length=1)]
MemoryCollectPolicy = Literal[
    "usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"
]
# `title` describes the allowed values, in place of a pattern.
Name = Annotated[
    str,
    Meta(
        # Characters that Kafka allows in names of topics and groups.
        pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]{0,99}$",
        title="a name of letters, digits, -, . and _, at most 100",
    ),
]
NodeName = Annotated[
    str, Meta(pattern=NODE_NAME, title="a name of lower-case letters, digits, - and ., at most 253")
]
ObjectName = Annotated[
    str,
    Meta(
        pattern=NODE_NAME,
        title="a Kubernetes name: lower-case letters, digits, - and ., at most 253",
    ),
]
Namespace = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        title="a namespace: lower-case letters, digits and -, at most 63",
    ),
]
Servers = Annotated[str, Meta(pattern=_SERVERS, title="host:port, several separated by commas")]
HttpAddress = Annotated[
    str,
    Meta(
        pattern=f"^{HTTP_ADDRESS}$",
        title="http:// or https://, a host without user and password, optional port and path",
    ),
]
MetricsHost = Annotated[Text, Meta(description="Address of the metrics page.")]
MetricsPort = Annotated[
    Port | None, Meta(description="Port of the metrics page; 0: any free port, null: no page.")
]


class Secret:
    """A text that prints as stars; `reveal()` returns the value."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Section(Struct, frozen=True, kw_only=True):
    """A group of keys. Override `problems` if keys depend on each other."""

    def problems(self) -> Mapping[str, str]:
        """Return the allowed values of each key whose value contradicts another key's, by key."""
        return {}
