"""Load the scheduler plugins of the extender from a KubeSchedulerConfiguration or the settings.

The file may be the scheduler's own: plugins that run here keep their names, arguments and weights.
"""

from pathlib import Path
from typing import Any

from pipeline.errors import InvalidPolicyError, SettingsError, UsageError
from pipeline.input_files import YAML_ERRORS, read_file, yaml_documents, yaml_problem
from pipeline.processors.placement.enabled_plugins import Placement, default_placement, read_config
from pipeline.processors.placement.kube_config import CONFIGURATION
from pipeline.settings import ExtenderSettings

KEY = "extender.scheduler_config_file"


def load_placement(settings: ExtenderSettings) -> Placement:
    """Return the plugins in the file of the settings, or LoadAware with their thresholds.

    Raises `SettingsError` if the file is unreadable or invalid.
    """
    if settings.scheduler_config_file is None:
        thresholds = {
            "cpu": settings.cpu_threshold_percent,
            "memory": settings.memory_threshold_percent,
        }
        placement = default_placement(thresholds, settings.stale_after_seconds)
        if settings.scheduler_name is None:
            return placement
        return placement._replace(notes=(f"extender.scheduler_name has no effect without {KEY}",))
    file = Path(settings.scheduler_config_file)
    try:
        return read_config(document_in(read_file(file)), settings.scheduler_name)
    except UsageError as error:
        raise SettingsError(f"{KEY}: {error.message}", key=KEY, hint=error.hint) from error
    except InvalidPolicyError as error:
        raise SettingsError(
            f"{KEY}: {file}: {error.message}",
            key=KEY,
            hint=error.hint
            or "docs/reference/extender.md has the plugins that run here, and their arguments",
        ) from error


def document_in(text: bytes) -> Any:
    """Return the document that looks like a scheduler configuration, else the first. Raises
    `InvalidPolicyError` if the text is not valid YAML."""
    try:
        documents = yaml_documents(text)
    except YAML_ERRORS as error:
        raise InvalidPolicyError(f"not valid YAML: {yaml_problem(error):.200}") from error
    trees = [tree for tree in documents if tree is not None]
    likely = [tree for tree in trees if isinstance(tree, dict) and _is_likely(tree)]
    return next(iter(likely or trees), None)


def _is_likely(tree: dict[Any, Any]) -> bool:
    return "profiles" in tree or tree.get("kind") == CONFIGURATION
