"""The plot is well-formed and shows what is comparable."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ort_hina.benchmark.plot import plot

SVG = "{http://www.w3.org/2000/svg}"


def _case(shape: str = "a", layout: str = "nk", m: float = 1.0, ms: float = 1.0, **others) -> dict:
    return {
        "operator": "MoE", "shape": shape, "dtype": "float", "layout": layout, "isa": "avx2", "prefill": False,
        "active_experts": 2, "tokens_per_expert": m, "ms_median": ms,
    } | others  # fmt: skip


def _points(svg: str) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [[tuple(map(float, point.split(","))) for point in line.get("points").split()] for line in lines]


def test_a_line_for_each_layout_and_a_panel_for_each_shape():
    cases = [_case(shape, layout, m, ms=m) for shape in "<&" for layout in ("nk", "kn") for m in (1.0, 4.0, 16.0)]
    svg = plot(cases)
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert texts.count("tokens for each expert") == 2 and "<" in texts and "&" in texts
    assert "MoE, float [N,K], avx2" in texts and "MoE, float [K,N], avx2" in texts
    assert len(_points(svg)) == 4 and svg.count("stroke-dasharray") == 3


def test_both_axes_are_logarithmic():
    (line,) = _points(plot([_case(m=m, ms=ms) for m, ms in ((16.0, 8.0), (1.0, 2.0), (4.0, 4.0))]))
    (x0, y0), (x1, y1), (x2, y2) = line
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x1 > x0
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2) and y1 < y0


def test_prefill_and_calls_of_more_experts_are_left_out():
    others = [_case(m=9.0, prefill=True), _case(m=9.0, active_experts=8), {"study": "overhead"}]
    assert plot([_case(), *others]) == plot([_case()])


@pytest.mark.parametrize("cases", [[], [_case(prefill=True)], [{"study": "odd"}]])
def test_nothing_to_plot_is_said(cases):
    with pytest.raises(ValueError, match="nothing to plot"):
        plot(cases)


@pytest.mark.parametrize("ms", [0.013, 1.0, 2.0, 999.0, 1000.0])
def test_a_single_time_has_an_axis(ms):
    (((x, y),),) = _points(plot([_case(ms=ms)]))
    assert 0 <= y <= 200 and x == 150
