"""Load the scheduler plugins of the extender from a KubeSchedulerConfiguration or the settings.

The file may be the scheduler's own: plugins that run here keep their names, arguments and weights.
"""

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import InvalidPolicyError, SettingsError
from pipeline.processors.placement.enabled_plugins import Placement, default_placement, read_config
from pipeline.processors.placement.kube_config import CONFIGURATION
from pipeline.settings import ExtenderSettings
from pipeline.settings.load import YAML_ERRORS, StrictLoader, yaml_problem

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
        return read_config(read_document(file), settings.scheduler_name)
    except OSError as error:
        raise SettingsError(
            f"{KEY}: cannot read {file}: {error.strerror}", key=KEY, hint="name a file"
        ) from error
    except InvalidPolicyError as error:
        raise SettingsError(
            f"{KEY}: {file}: {error.message}",
            key=KEY,
            hint=error.hint
            or "docs/reference/extender.md has the plugins that run here, and their arguments",
        ) from error


def read_document(file: Path) -> Any:
    """Return the document of the file that looks like a scheduler configuration, else the first.

    Raises `OSError`, and `InvalidPolicyError` if the file is not valid YAML.
    """
    try:
        documents = yaml.load_all(file.read_text("utf-8"), Loader=StrictLoader)
        trees = [tree for tree in documents if tree is not None]
    except YAML_ERRORS as error:
        raise InvalidPolicyError(f"not valid YAML: {yaml_problem(error):.200}") from error
    likely = [tree for tree in trees if isinstance(tree, dict) and _is_likely(tree)]
    return next(iter(likely or trees), None)


def _is_likely(tree: dict[Any, Any]) -> bool:
    return "profiles" in tree or tree.get("kind") == CONFIGURATION
