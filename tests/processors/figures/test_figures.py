"""Parts of figures and pages: thinned lines, scales, ticks, and texts that stay texts."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.printable_text import printable
from pipeline.processors.figures import page, svg
from pipeline.processors.figures.lines import area_data, bars_data, line_data, thinned
from pipeline.processors.figures.scales import Scale, bottom_axis, round_ticks, time_ticks

VALUES = arrays(np.float64, st.integers(1, 300), elements=st.floats(-1e6, 1e6))
HOSTILE = '</title></svg><script>x()</script><img src=x onerror="x()" \'&\u202e\x00\ud800'


@given(VALUES, st.integers(1, 40))
def test_a_thinned_line_keeps_the_extremes_of_each_pixel(values: np.ndarray, width: int) -> None:
    x = np.linspace(0.0, width, len(values), endpoint=False)
    kept = thinned(x, values)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= 3 * width
    for column in np.unique(np.floor(x)):
        everything, shown = values[np.floor(x) == column], values[kept][np.floor(x[kept]) == column]
        assert (shown.min(), shown.max()) == (everything.min(), everything.max())
        assert shown[-1] == everything[-1]


def test_lines_and_areas_break_where_a_value_is_unknown() -> None:
    x, y = np.arange(5.0), np.array([1.0, 2.0, np.nan, 3.0, np.nan])
    assert line_data(x, y) == "M0 1L1 2M3 3"
    assert area_data(x, y, 9.0) == "M0 9L0 1L1 2L1 9ZM3 9L3 3L3 9Z"
    assert line_data(x, np.full(5, np.nan)) == ""
    assert line_data(x[:0], y[:0]) == ""


def test_bars_of_one_pixel_are_one_that_covers_all() -> None:
    x, low, high = np.array([1.2, 1.9, 3.0]), np.array([9.0, 7.0, 5.0]), np.array([6.0, 4.0, 1.0])
    assert bars_data(x, low, high) == "M1.2 9V4M3 5V1"
    assert bars_data(x[:0], low[:0], high[:0]) == ""


@given(st.floats(1e-9, 1e12), st.integers(1, 10))
def test_round_ticks_cover_the_values(highest: float, count: int) -> None:
    ticks = round_ticks(highest, count)
    assert ticks[0] == 0.0
    assert ticks[-1] >= highest * (1 - 1e-9)
    assert 2 <= len(ticks) <= count + 1


@pytest.mark.parametrize("highest", [0.0, float("nan"), -1.0])
def test_nothing_has_ticks_too(highest: float) -> None:
    assert round_ticks(highest, 4) == [0.0, 1.0]


@given(st.integers(0, 2**34), st.integers(1, 2**34), st.integers(1, 12))
def test_time_ticks_are_few_and_inside(start: int, length: int, count: int) -> None:
    ticks, labels = time_ticks(start, start + length, count)
    assert len(labels) == len(ticks) <= 2 * count + 1
    assert all(start <= tick <= start + length for tick in ticks)


def test_time_ticks_are_at_whole_days_or_hours() -> None:
    start = 1_700_000_000  # 2023-11-14 22:13:20
    assert time_ticks(start, start + 4 * 86400, 4)[1] == ["Nov 15", "Nov 16", "Nov 17", "Nov 18"]
    assert time_ticks(start, start + 6 * 3600, 3)[1] == ["Nov 15", "02:00", "04:00"]


def test_a_scale_by_roots_leaves_room_for_small_values() -> None:
    linear, roots = (Scale(0.0, 100.0, 0.0, 200.0, by_roots=by_roots) for by_roots in (False, True))
    assert (linear.at(25.0), roots.at(25.0)) == (50.0, 100.0)
    assert linear(np.array([-5.0, 500.0])).tolist() == [0.0, 200.0]


def test_labels_without_room_are_left_out() -> None:
    scale = Scale(0.0, 10.0, 0.0, 100.0)
    parts = "".join(bottom_axis(scale, [0.0, 0.5, 9.9], ["first", "second", "third"], 0, 50))
    assert "first" in parts
    assert "second" not in parts
    assert "third" not in parts
    assert parts.count("<path") == 3


@given(st.text(max_size=80), st.floats(0, 300))
def test_a_fitted_text_is_no_wider(content: str, pixels: float) -> None:
    fitted = svg.fitted(content, pixels)
    assert fitted == printable(content) or "…" in fitted
    assert fitted == "…" or svg.width_of(fitted) <= pixels


def test_a_long_name_is_fitted_by_what_has_room() -> None:
    # Shortened one character at a time, it would be measured a million times.
    name = "a" * 500_000 + "b" * 500_000
    assert svg.fitted(name, 100) == svg.fitted("a" * 20 + "b" * 20, 100) == "aaaaa…bbbbb"


@given(st.text(st.characters(), min_size=1, max_size=60) | st.just(HOSTILE))
def test_any_name_is_text_in_a_figure(name: str) -> None:
    parts = [svg.text(1, 2, name), svg.circle(1, 2, 3, "own", name)]
    root = ET.fromstring(svg.figure(10, 10, name, name, parts))
    tags = [element.tag.partition("}")[2] for element in root.iter()]
    assert tags == ["svg", "title", "desc", "style", "text", "circle", "title"]
    assert root[0].text == root[1].text == root[3].text == printable(name)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_any_name_is_text_on_a_page() -> None:
    parts = [
        page.heading(HOSTILE), page.paragraph(HOSTILE, "lead"), page.key([("own", HOSTILE)]),
        page.table([HOSTILE, "b"], [[HOSTILE, [HOSTILE]]], texts=1, marked=[True]),
    ]  # fmt: skip
    html = page.page(HOSTILE, parts)
    html.encode()  # no half of a surrogate pair is left
    parsed = Tags()
    parsed.feed(html)
    names = [tag for tag, _ in parsed.tags]
    assert not {"script", "img", "svg"} & {*names}
    assert all(not name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert parsed.texts.count(printable(HOSTILE)) == 8
    policy = next(a["content"] for tag, a in parsed.tags if "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert ("tr", {"class": "own"}) in parsed.tags
