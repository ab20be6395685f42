"""The feature of docs/how-to/add-an-actuator-feature.md labels a hot Node."""

from pathlib import Path

from tests.docs.guides import blocks, run


def test_the_guides_feature_writes_its_label(tmp_path: Path) -> None:
    module, check = blocks("add-an-actuator-feature.md", "python")
    (tmp_path / "hot_labels.py").write_text(module)
    run(check.replace("actuators.cluster.hot_labels", "hot_labels"), tmp_path)
