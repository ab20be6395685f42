"""The examples of the guides that change the product work as they are written."""

from pathlib import Path

from tests.docs.guides import Edit, blocks, edits, run, run_edited

HELP = """
from click.testing import CliRunner
from pipeline.cli.main import cli

def show_help(*command):
    print(" ".join(CliRunner().invoke(cli, [*command, "--help-all"]).output.split()))
"""


def inserted(module: str, anchor: str, guide: str) -> list[Edit]:
    """The guide's example behind an anchor."""
    (example,) = blocks(guide, "python")
    return [Edit(module, anchor, anchor + example)]


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
    changes = inserted(
        "pipeline.cli.top_columns",
        "COLUMNS: Final[tuple[Column[Any], ...]] = (\n",
        "add-a-top-column.md",
    )
    output = run_edited(changes, HELP + code, tmp_path)
    rows = [line.split()[:2] for line in output.splitlines()[:3]]
    assert rows == [["MEASURED", "NODE"], ["100%", "b"], ["50%", "a"]]
    assert "--sort [measured|name|" in output
    assert "MEASURED Share of the last window that was measured." in output


def test_metric_of_the_guide_is_on_the_page(tmp_path: Path) -> None:
    (example,) = blocks("add-a-metric.md", "python")
    show = (
        "import asyncio\nfrom pipeline import metrics\nprint(asyncio.run(metrics.page()).decode())"
    )
    page = run(f"{example}\n{show}", tmp_path)
    assert 'springtide_extender_snapshots_total{result="written"} 1.0' in page


def test_setting_of_the_guide_has_variable_flag_page_and_validation(tmp_path: Path) -> None:
    code = """
from pipeline.errors import SettingsError
from pipeline.settings import load_settings, settings_markdown

variable = "SPRINGTIDE_EXTENDER_SLOW_REQUEST_SECONDS"
print(load_settings(None, {variable: "0.5"}, {}).extender.slow_request_seconds)
try:
    load_settings(None, {variable: "0"}, {})
except SettingsError as error:
    print(error.message)
print(*(line for line in settings_markdown().splitlines() if "slow_request_seconds" in line))
show_help("extender")
"""
    changes = inserted(
        "pipeline.settings.extender_settings",
        '    """The extender, an HTTP service for kube-scheduler."""\n',
        "change-a-setting.md",
    )
    output = run_edited(changes, HELP + code, tmp_path)
    value, error, row, shown = output.splitlines()
    assert value == "0.5"
    assert "extender.slow_request_seconds: '0' is not allowed" in error
    assert row.startswith("| `extender.slow_request_seconds` | `1` |")
    assert "--slow-request-seconds DURATION Requests that took longer log a warning." in shown


def test_node_state_field_of_the_guide_is_published_and_in_the_table(tmp_path: Path) -> None:
    code = """
from tests.processors.joined import pod_row
from tests.processors.model.test_result_records import state
from tests.table.records import table_of

ratios = {"a": 0.05, "b": 0.5, "c": None, "d": 1.0}
record = state(*(pod_row(uid, cpu_throttled_ratio=ratio) for uid, ratio in ratios.items()))
print(record.pods, record.throttled_pods, table_of(record)["throttled_pods"][0])
"""
    output = run_edited(edits("add-a-node-state-field.md"), code, tmp_path)
    assert output.split() == ["4", "2", "2.0"]


def test_policy_key_of_the_guide_is_resolved_checked_used_and_documented(tmp_path: Path) -> None:
    code = """
import json
from pipeline.processors.explain.offer_text import explain_offers
from pipeline.processors.policy.policy_in_force import load_policies, with_policy
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from tests.docs.tables import policy_keys_table
from tests.processors.derivations import check, numbers
from tests.processors.overcommit.test_node_offers import shop_window, with_overcommit, compute

for percent in (10, 101):
    own = json.dumps({"batchMarginPercent": percent})
    policies, problems = load_policies(
        {"colocation-config": '{"enable": true}', "springtide-config": own}
    )
    record, _ = with_policy(NodeRecord(node="n"), policies)
    overcommit = record.overcommit
    print(overcommit and overcommit.batch_margin_percent, *(problem.text for problem in problems))
for percent in (0, 25):
    window = shop_window(with_overcommit(batch_margin_percent=percent))
    (offer,) = compute(window, peaks=[(4, 6)])
    check(explain_offers(offer)[1:], numbers(json.loads(encode_json(offer))))
    print(offer.batch.cpu_millicores, offer.batch_terms.spare.cpu_millicores)
print("| `batchMarginPercent` | 0 | a whole number from 0 to 100 |" in policy_keys_table())
"""
    output = run_edited(edits("add-a-policy-key.md"), code, tmp_path)
    assert output.splitlines() == [
        "10", "None batchMarginPercent is 101, allowed is 0 to 100", "7000 0", "3000 4000", "True",
    ]  # fmt: skip
