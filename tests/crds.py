"""The definitions in `deploy/chart/crds` as files: `python -m tests.crds` writes them anew."""

from pathlib import Path

import yaml

from pipeline.processors.admission.colocation_profile import DEFINITION as COLOCATION_PROFILE
from pipeline.processors.eviction.migration_job_object import DEFINITION as MIGRATION_JOB
from pipeline.processors.slo.crd_schema import KINDS, Kind, definition

FOLDER = Path(__file__).parents[1] / "deploy/chart/crds"
_HEAD = "# Made of the fields in pipeline/processors/{} by `python -m tests.crds`.\n"


class _Plain(yaml.SafeDumper):
    """YAML in which what is said twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def path_of(kind: Kind) -> Path:
    return FOLDER / f"{kind.plural}.yaml"


def text_of(kind: Kind) -> str:
    wing = kind.struct.__module__.split(".")[2]
    text = yaml.dump(definition(kind), Dumper=_Plain, sort_keys=False, width=100)
    return _HEAD.format(wing) + text


if __name__ == "__main__":
    for each in (*KINDS, MIGRATION_JOB, COLOCATION_PROFILE):
        path_of(each).write_text(text_of(each))
