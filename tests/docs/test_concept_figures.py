"""The figures of the concepts are those that the formulas give."""

from tests.docs.concept_figures import CAPACITY, FIGURES, FOLDER, SYSTEM, USED, cores, example


def test_figures_are_as_drawn() -> None:
    stale = [name for name, draw in FIGURES.items() if (FOLDER / name).read_text() != draw()]
    assert stale == [], "run `python -m tests.docs.concept_figures`"


def test_parts_of_the_node_add_up_and_are_those_of_the_page() -> None:
    amounts = example()
    assert SYSTEM + USED + sum(amounts) == CAPACITY
    page = " ".join((FOLDER / "concepts.md").read_text().split())
    assert f"Mid {cores(amounts.mid)}, Batch {cores(amounts.batch)}" in page
