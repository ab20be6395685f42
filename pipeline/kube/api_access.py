"""API server address and credentials, from a kubeconfig or the service account of the pod.

The library `kubernetes` reads both, exec plugins and renewed tokens included. It is imported when
it is needed, and used for nothing else.
"""

import asyncio
import os
import ssl
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.certificate_validity import show_validity
from pipeline.errors import ApiUnavailableError, KubernetesError, MissingExtraError, SettingsError
from pipeline.settings import KubernetesSettings
from pipeline.tls import RenewedContext

TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The token of the pod's service account."""
# What the library raises for a file that is no kubeconfig.
_INVALID_KUBECONFIG: Final = (AttributeError, KeyError, OSError, TypeError, ValueError)
_DEFAULT_FILE: Final = Path("~/.kube/config")
NO_CLUSTER: Final = "set kubernetes.kubeconfig, or run in a pod with a service account"
"""The hint where no API server is configured."""


class ApiAccess:
    """The address `server`, reached through `proxy` if there is one. `tls` verifies its
    certificate, against `server_name` if that differs from the address; `headers` authenticate, or
    the client certificate in `cert_file`."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self.server: str = configuration.host.rstrip("/")
        self.server_name: str | None = configuration.tls_server_name or None
        self.proxy: str | None = configuration.proxy or None
        self.cert_file: str | None = configuration.cert_file or None
        self.tls = _tls(configuration) if self.server.startswith("https") else None

    async def headers(self) -> dict[str, str]:
        """Headers of a request, with a token that is valid now; an exec plugin may take a while.
        Raises `ApiUnavailableError` if there are no credentials any more."""
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


def api_access(settings: KubernetesSettings) -> ApiAccess:
    """The access that `settings` describe. Raises `KubernetesError` if none is configured,
    `SettingsError` for an invalid kubeconfig."""
    try:
        from kubernetes import config
        from kubernetes.client import Configuration
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "the client of Kubernetes", "kubernetes", module=error.name
        ) from error
    configuration = Configuration()
    # Only the proxy of the kubeconfig counts, not that of the environment.
    configuration.proxy = None
    load_in_pod: Any = config.load_incluster_config
    load_file: Any = config.load_kube_config
    path = settings.kubeconfig or os.environ.get("KUBECONFIG")
    # $KUBECONFIG may list several files, of which some may be missing.
    if path and not any(Path(file).exists() for file in str(path).split(os.pathsep)):
        raise _invalid(path, "No such file")
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and TOKEN_FILE.exists()
    try:
        if path is None and is_in_pod:
            load_in_pod(client_configuration=configuration)
        else:
            load_file(
                config_file=str(path) if path else None,
                context=settings.context,
                client_configuration=configuration,
            )
    except (config.ConfigException, yaml.YAMLError, *_INVALID_KUBECONFIG) as error:
        if path is None:
            is_missing = not is_in_pod and not _DEFAULT_FILE.expanduser().exists()
            why = f"there is no {_DEFAULT_FILE}" if is_missing else str(error)
            raise KubernetesError(f"no access to Kubernetes: {why}", hint=NO_CLUSTER) from error
        raise _invalid(path, " ".join(str(error).split())[:200]) from error
    if not configuration.host.startswith(("http://", "https://")):
        raise _invalid(path, f"its server is {configuration.host[:200]!r}, not https://...")
    if path is not None and _plugin_failed(Path(path), settings.context, configuration):
        raise _invalid(path, "its exec plugin gives no credentials; run its command by hand")
    return ApiAccess(configuration)


def _invalid(path: object, why: str) -> SettingsError:
    return SettingsError(
        f"kubernetes.kubeconfig: {path} cannot be used: {why}",
        key="kubernetes.kubeconfig",
        hint="name a readable file that works with kubectl",
    )


def _plugin_failed(path: Path, context: str | None, configuration: Any) -> bool:
    """Whether the kubeconfig gets credentials from an exec plugin, and has none: the library goes
    on without credentials if the plugin fails."""
    if configuration.api_key or configuration.cert_file or not path.is_file():
        return False
    document = yaml.safe_load(path.read_text()) or {}
    name = context or document.get("current-context")
    contexts = {each["name"]: each.get("context") or {} for each in document.get("contexts") or ()}
    users = {each["name"]: each.get("user") or {} for each in document.get("users") or ()}
    return bool(users.get(contexts.get(name, {}).get("user"), {}).get("exec"))


def _tls(configuration: Any) -> ssl.SSLContext:
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    if configuration.cert_file:
        show_validity("kubernetes", configuration.cert_file)
    return RenewedContext(partial(_new_context, configuration), [file for file in files if file])


def _new_context(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
