"""Read the DeschedulerConfiguration of the cluster, and the policy of evictions in it."""

from typing import Final
from urllib.parse import quote

import msgspec

from pipeline.errors import ForbiddenError, KubernetesError, NotFoundError
from pipeline.kube.api_client import Api, decode_answer
from pipeline.logs import get_logger
from pipeline.processors.descheduling.descheduler_config import (
    NO_DESCHEDULING,
    Descheduling,
    load_descheduling,
)
from pipeline.processors.descheduling.eviction_policy import migration_policy
from pipeline.processors.eviction.migration_policy import MigrationPolicy

log = get_logger(__name__)


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


ABSENT: Final = NO_DESCHEDULING._replace(profiles=())
"""An empty configuration: the ConfigMap does not exist."""
_config_maps: Final = msgspec.json.Decoder(_ConfigMap)


async def read_policy(
    api: Api, namespace: str, name: str, last: MigrationPolicy | None = None
) -> MigrationPolicy | None:
    """The policy of the ConfigMap; None if it cannot be read or is not a DeschedulerConfiguration.
    Without a ConfigMap it is the `last` policy, because a deletion must neither loosen limits nor
    end a dry run; Koordinator's defaults if there is none. Raises `ForbiddenError` if RBAC denies
    it."""
    descheduling = await read_descheduling(api, namespace, name)
    if descheduling is ABSENT and last is not None:
        return last
    return None if descheduling is None else migration_policy(descheduling)


async def read_descheduling(api: Api, namespace: str, name: str) -> Descheduling | None:
    """The configuration of the ConfigMap, `ABSENT` if there is none; None if it cannot be read or
    is not a DeschedulerConfiguration. Raises `ForbiddenError` if RBAC denies it."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
    try:
        answer = await api.request("GET", path)
        data = decode_answer(_config_maps, answer, f"GET {path}").data
    except NotFoundError as error:
        # A proxy's 404 has no reason.
        return ABSENT if error.reason == "NotFound" else None
    except ForbiddenError:
        raise
    except KubernetesError as error:
        log.warning("cannot read the descheduler configuration", why=error.message)
        return None
    return load_descheduling(data or {})[0]
