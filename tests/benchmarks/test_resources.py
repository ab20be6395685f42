"""The benchmark of Mid and Batch compares like with like."""

import numpy as np
import pytest

from benchmarks import resources


def test_every_stage_and_the_loop_are_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    resources.report(7, 6, [2, 7], 1)
    head, names, *rows = capsys.readouterr().out.splitlines()
    assert head == "7 nodes of 6 pods, CPU us a node"
    assert names.split()[2:6] == ["once", "columns", "amounts", "offers"]
    assert [row.split()[0] for row in rows] == ["2", "loop:", "7", "loop:"]


def test_all_nodes_take_part_with_each_policy_and_class() -> None:
    fleet = list(resources.windows(6, 6))
    (part,) = resources.parts(fleet, 6)
    found = part.offers()
    assert found.known.all()
    assert (found.mid.amount > 0).all()
    assert (found.batch.terms["promised"] > 0).any()
    _, pods, policies = part.columns()
    assert len(set(policies.column("memory_calculate_policy"))) == 3
    assert len(np.unique(pods.class_code)) == 3
    assert [record.node for record in part.records(found)] == [w.header.node for w in fleet]


def test_amounts_that_differ_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "allocated", lambda count, _: np.ones((count, 2), np.int64))
    with pytest.raises(SystemExit, match="the loop's amounts differ"):
        resources.report(3, 6, [3], 1)
