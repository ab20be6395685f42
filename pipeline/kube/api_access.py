"""Where the API server is, and as whom we come: kubeconfig, or the service account of the pod.

The library `kubernetes` reads both, exec plugins and tokens that change included; it is loaded when
somebody asks, and used for nothing else.
"""

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.errors import (
    ApiUnavailableError,
    KubernetesError,
    MissingExtraError,
    SettingsError,
)
from pipeline.settings import KubernetesSettings

_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# What the library raises of a file of another kind.
_NO_KUBECONFIG: Final = (AttributeError, KeyError, OSError, TypeError, ValueError)
NO_CLUSTER: Final = "set kubernetes.kubeconfig, or run in a pod with a service account"
"""What to do where nothing says where the API server is."""


class Access:
    """`server` is where it is, by which `proxy`; `tls` and `server_name` (where its certificate has
    another than its address) how to be sure of it; `headers` say who asks."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self.server: str = configuration.host.rstrip("/")
        self.server_name: str | None = configuration.tls_server_name or None
        self.proxy: str | None = configuration.proxy or None
        self.tls = _tls(configuration) if self.server.startswith("https") else None

    async def headers(self) -> dict[str, str]:
        """Of a request, with a token that is valid now: a plugin that gives one may take long.
        Raises `ApiUnavailableError` if there is none any more."""
        from kubernetes.config import ConfigException

        if not self._configuration.api_key and not self._configuration.refresh_api_key_hook:
            return {}
        try:
            token = await asyncio.to_thread(
                self._configuration.get_api_key_with_prefix, "BearerToken", "authorization"
            )
        except (OSError, ValueError, ConfigException) as error:
            raise ApiUnavailableError(
                f"credentials cannot be read: {error}", was_done=False
            ) from error
        return {"Authorization": token.strip()} if token else {}


def access(settings: KubernetesSettings) -> Access:
    """As `settings` say. Raises `KubernetesError` where there is nothing to go by, `SettingsError`
    for a kubeconfig that cannot be used."""
    try:
        from kubernetes import config
        from kubernetes.client import Configuration
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "the client of Kubernetes", "kubernetes", module=error.name
        ) from error
    found = Configuration()
    # That of the environment is for others; what a kubeconfig says of it counts.
    found.proxy = None
    load_in_pod: Any = config.load_incluster_config
    load_file: Any = config.load_kube_config
    given = settings.kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if given is None and "KUBERNETES_SERVICE_HOST" in os.environ and _TOKEN.exists():
            load_in_pod(client_configuration=found)
        else:
            load_file(
                config_file=str(given) if given else None,
                context=settings.context,
                client_configuration=found,
            )
    except (config.ConfigException, yaml.YAMLError, *_NO_KUBECONFIG) as error:
        if given is None:
            raise KubernetesError(f"no access to Kubernetes: {error}", hint=NO_CLUSTER) from error
        raise _unusable(given, " ".join(str(error).split())[:200]) from error
    if not found.host.startswith(("http://", "https://")):
        raise _unusable(given, f"its server is {found.host[:200]!r}, not https://...")
    if given is not None and _plugin_failed(Path(given), settings.context, found):
        raise _unusable(given, "its exec plugin gives no credentials; run its command by hand")
    return Access(found)


def _unusable(given: object, why: str) -> SettingsError:
    return SettingsError(
        f"kubernetes.kubeconfig: {given} cannot be used: {why}",
        key="kubernetes.kubeconfig",
        hint="name a readable file that kubectl can use, too",
    )


def _plugin_failed(path: Path, context: str | None, found: Any) -> bool:
    """Whether the user of a kubeconfig is to come by a plugin, and the library goes on as nobody
    because that failed."""
    if found.api_key or found.cert_file or not path.is_file():
        return False
    document = yaml.safe_load(path.read_text()) or {}
    name = context or document.get("current-context")
    of = {one["name"]: one.get("context") or {} for one in document.get("contexts") or ()}
    users = {one["name"]: one.get("user") or {} for one in document.get("users") or ()}
    return bool(users.get(of.get(name, {}).get("user"), {}).get("exec"))


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
