"""`springtide webhook`: answer the API server about new and changed pods."""

import asyncio

import click

from pipeline.cli.help_sections import Command
from pipeline.cli.options import settings_options
from pipeline.clock import SystemClock
from pipeline.kube.api_client import open_api
from pipeline.metrics import serve_metrics
from pipeline.settings import Settings
from pipeline.tasks import ignore_stop_signals, stop_events
from pipeline.webhook.webhook_service import serve


@click.command(
    cls=Command,
    exit_codes={
        0: "stopped by a signal",
        1: "failure: RBAC denies a request",
        2: "invalid usage or settings, such as a port in use or no certificate",
    },
)
@settings_options(
    "kubernetes.kubeconfig",
    "kubernetes.context",
    "webhook.*",
    shown=("webhook.mode", "webhook.feature_gates"),
)
def command(settings: Settings) -> None:
    """Apply ClusterColocationProfiles to new pods: an admission webhook, which needs no Kafka.

    A profile gives the pods that it selects a QoS class, a priority, labels and a scheduler, and
    their cpu and memory become Batch or Mid resources. Pairs of QoS and priority that Koordinator
    forbids are refused.

    In mode observe, the default, every pod is admitted unchanged. The log, and the audit log of the
    API server, say what would be changed or refused. --mode act changes and refuses.

    The Helm chart deploy/chart installs it, with certificate and configuration for the API server,
    by the value webhook.enabled. The failure policy is Ignore: without a webhook pods are admitted
    unchanged. On SIGTERM the webhook reports "draining" at /readyz and answers for 5 s more. Ctrl-C
    or a second signal skips these. GET /readyz and /healthz are on the same port.

    \b
    Examples:
      springtide webhook --tls-cert-file tls.crt --tls-key-file tls.key
      springtide webhook --tls-cert-file tls.crt --tls-key-file tls.key --mode act \\
        --feature-gates PodValidatingWebhook=false
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop, at_once = stop_events()
    section, clock = settings.webhook, SystemClock()
    serve_metrics("webhook", section.metrics_host, section.metrics_port)
    try:
        async with open_api(settings.kubernetes, clock, name="springtide-webhook") as api:
            await serve(api, section, clock, stop, at_once=at_once)
    finally:
        ignore_stop_signals()
