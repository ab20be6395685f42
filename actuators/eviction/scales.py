"""Replicas of controllers of any kind, by the scale subresource that kubectl and autoscalers use.

The API server says by discovery which resource a kind is, and whether it has that subresource. RBAC
must allow to get it: `deploy/chart/rbac/evictor.yaml` names the kinds.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from pipeline.errors import ForbiddenError, NotFoundError
from pipeline.kube.api_client import Api, decode_answer
from pipeline.logs import get_logger

log = get_logger(__name__)

_API_VERSION: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,250}[a-z0-9])?/[a-z0-9]{1,63}")
_FRESH_SECONDS: Final = 600.0
_MOST_VERSIONS: Final = 100


class Scale(NamedTuple):
    """The desired number of pods, None if it is not stated, and their selector in the form of a
    query parameter."""

    replicas: int | None
    selector: str


class _Resource(msgspec.Struct):
    name: str
    kind: str


class _Resources(msgspec.Struct):
    resources: tuple[_Resource, ...] = ()


class _Spec(msgspec.Struct, frozen=True):
    replicas: int = 0


class _Status(msgspec.Struct, frozen=True):
    selector: str = ""


class _Scale(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


_resources: Final = msgspec.json.Decoder(_Resources)
_scales: Final = msgspec.json.Decoder(_Scale)


class ScaleReader:
    """Reads scales. What discovery says is asked for again after ten minutes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, tuple[float, dict[str, str]]] = {}

    async def read(self, namespace: str, api_version: str, kind: str, name: str) -> Scale | None:
        """The scale of a controller; None if its kind has none, it does not exist, it does not say
        its pods, or RBAC denies it. Raises `SpringtideError`."""
        if not _API_VERSION.fullmatch(api_version):
            return None
        plural = (await self._plurals(api_version)).get(kind)
        if plural is None:
            return None
        path = (
            f"/apis/{api_version}/namespaces/{quote(namespace, safe='')}/{quote(plural, safe='')}/"
            f"{quote(name, safe='')}/scale"
        )
        try:
            scale = decode_answer(_scales, await self._api.request("GET", path), f"GET {path}")
        except NotFoundError:
            return None
        except ForbiddenError as error:
            what = f"{plural}/scale of {api_version.partition('/')[0]}"
            hint = f"grant the verb get for {what}, as in deploy/chart/rbac/evictor.yaml"
            log.warning("replicas are unknown", kind=kind, why=error.message, hint=hint)
            return None
        return Scale(scale.spec.replicas, scale.status.selector) if scale.status.selector else None

    async def _plurals(self, api_version: str) -> dict[str, str]:
        """The resources of kinds that have a scale; empty if there is no such version."""
        now = self._api.clock.monotonic()
        asked_at, plurals = self._known.get(api_version, (0.0, None))
        if plurals is not None and now - asked_at < _FRESH_SECONDS:
            return plurals
        path = f"/apis/{api_version}"
        try:
            answer = decode_answer(_resources, await self._api.request("GET", path), f"GET {path}")
        except NotFoundError:
            resources: tuple[_Resource, ...] = ()
        else:
            resources = answer.resources
        scaled = {each.name.removesuffix("/scale") for each in resources if "/scale" in each.name}
        plurals = {each.kind: each.name for each in resources if each.name in scaled}
        self._known[api_version] = now, plurals
        while len(self._known) > _MOST_VERSIONS:
            del self._known[next(iter(self._known))]
        return plurals
