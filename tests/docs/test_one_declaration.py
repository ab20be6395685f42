"""The examples of the guides for columns, metrics and settings work as one declaration each."""

import json
from pathlib import Path

from tests.docs.guides import blocks, run

EDIT = """
import importlib.machinery, json, sys
module, anchor, example = json.load(sys.stdin)
loader = importlib.machinery.SourceFileLoader
get_code = loader.get_code

def edited_code(self, name):
    if name != module:
        return get_code(self, name)
    source = self.get_source(name)
    assert source.count(anchor) == 1
    return compile(source.replace(anchor, anchor + example), self.path, "exec")

loader.get_code = edited_code

from click.testing import CliRunner
from pipeline.cli.main import cli

def show_help(*command):
    print(" ".join(CliRunner().invoke(cli, [*command, "--help"]).output.split()))
"""


def run_edited(module: str, anchor: str, guide: str, code: str, package: Path) -> str:
    """Run `code` with the guide's example inserted into a module behind `anchor`."""
    (example,) = blocks(guide, "python")
    return run(EDIT + code, package, json.dumps([module, anchor, example]))


def test_column_of_the_guide_is_shown_sorted_and_documented(tmp_path: Path) -> None:
    code = """
from pipeline.cli.node_table import node_lines, plain_text
from tests.table.records import NOW, node_state, table_of
import msgspec

states = [msgspec.structs.replace(node_state(name), coverage=share)
          for name, share in (("a", 0.5), ("b", 1.0))]
print(plain_text(node_lines(table_of(*states), NOW, sort="measured")))
show_help("top")
"""
    output = run_edited(
        "pipeline.cli.top_columns",
        "COLUMNS: Final[tuple[Column[Any], ...]] = (\n",
        "add-a-top-column.md",
        code,
        tmp_path,
    )
    rows = [line.split()[:2] for line in output.splitlines()[:3]]
    assert rows == [["MEASURED", "NODE"], ["100%", "b"], ["50%", "a"]]
    assert "--sort [measured|name|cpu|memory|peak]" in output
    assert "MEASURED Share of the last window that was measured." in output


def test_metric_of_the_guide_is_on_the_page(tmp_path: Path) -> None:
    (example,) = blocks("add-a-metric.md", "python")
    page = run(f"{example}\nfrom pipeline import metrics\nprint(metrics.page().decode())", tmp_path)
    assert 'springtide_extender_snapshots_total{result="written"} 1.0' in page


def test_setting_of_the_guide_has_variable_flag_page_and_validation(tmp_path: Path) -> None:
    code = """
from pipeline.errors import SettingsError
from pipeline.settings import load_settings, settings_markdown

variable = "SPRINGTIDE_EXTENDER_REQUEST_BYTES_LIMIT"
print(load_settings(None, {variable: "2048"}, {}).extender.request_bytes_limit)
try:
    load_settings(None, {variable: "0"}, {})
except SettingsError as error:
    print(error.message)
print(*(line for line in settings_markdown().splitlines() if "request_bytes_limit" in line))
show_help("extender")
"""
    output = run_edited(
        "pipeline.settings.extender_settings",
        '    """The extender, an HTTP service for kube-scheduler."""\n',
        "change-a-setting.md",
        code,
        tmp_path,
    )
    value, error, row, shown = output.splitlines()
    assert value == "2048"
    assert "extender.request_bytes_limit: '0' is not allowed" in error
    assert row.startswith("| `extender.request_bytes_limit` | `33554432` |")
    assert "--request-bytes-limit INTEGER Largest accepted request; 413 for larger ones." in shown
