"""Milliseconds over tokens for each expert, a panel for each layer: the form of Figure 10 of the HiNa-MoE paper."""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, GAP_Y = 300, 200, 52, 40, 48
COLUMNS = 3
COLOURS = ("#d9822b", "#2b6cb0", "#2f855a", "#9f3a72", "#6b7280", "#b7791f", "#0f766e", "#7c3aed")
DASHES = {"nk": "", "kn": ' stroke-dasharray="5 3"'}
LAYOUT_NAMES = {"nk": "[N,K]", "kn": "[K,N]"}
# Closer labels of the x axis would touch.
LABEL_DISTANCE = 22


def plot(cases: Iterable[dict]) -> str:
    """An SVG of the cases in which every active expert got the same number of tokens. Both axes are logarithmic.

    Raises:
        ValueError: there is no such case.
    """
    cases = _comparable(cases)
    if not cases:
        raise ValueError("nothing to plot: no case in which every active expert got equally many tokens")
    shapes = list(dict.fromkeys(case["shape"] for case in cases))
    colours = {key: COLOURS[i % len(COLOURS)] for i, key in enumerate(dict.fromkeys(map(_colour_key, cases)))}
    columns = min(COLUMNS, len(shapes))
    legend = _legend(cases, colours)
    panels_height = math.ceil(len(shapes) / columns) * (HEIGHT + TOP + GAP_Y)
    width, height = columns * (WIDTH + LEFT + 20), panels_height + 18 * len(legend) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, shape in enumerate(shapes):
        x, y = place % columns * (WIDTH + LEFT + 20) + LEFT, place // columns * (HEIGHT + TOP + GAP_Y) + TOP
        lines.append(f'<g transform="translate({x} {y})">')
        lines += _panel(shape, [case for case in cases if case["shape"] == shape], colours)
        lines.append("</g>")
    for row, entry in enumerate(legend):
        lines.append(f'<g transform="translate({LEFT} {panels_height + 18 * row})">{entry}</g>')
    return "\n".join([*lines, "</svg>", ""])


def _comparable(cases: Iterable[dict]) -> list[dict]:
    """Calls of one shape that run equally many experts; ONNX Runtime's MatMuls run all that are stored."""
    exact = [case for case in cases if not case.get("prefill", True)]
    fewest = {case["shape"]: min(c["active_experts"] for c in exact if c["shape"] == case["shape"]) for case in exact}
    return [case for case in exact if case["active_experts"] == fewest[case["shape"]]]


def _colour_key(case: dict) -> tuple[str, str, str]:
    return case["operator"], case["dtype"], case["isa"]


def _legend(cases: list[dict], colours: dict) -> list[str]:
    keys = dict.fromkeys((*_colour_key(case), case["layout"]) for case in cases)
    return [
        f'<line x1="0" y1="4" x2="30" y2="4" stroke="{colours[key[:3]]}" stroke-width="2"{DASHES[key[3]]}/>'
        f'<text x="38" y="8">{escape(f"{key[0]}, {key[1]} {LAYOUT_NAMES[key[3]]}, {key[2]}")}</text>'
        for key in keys
    ]


def _panel(shape: str, cases: list[dict], colours: dict) -> list[str]:
    tokens = sorted({case["tokens_per_expert"] for case in cases})
    x = _scale(tokens[0], tokens[-1], 0, WIDTH)
    low, high = _ticks(cases)[0], _ticks(cases)[-1]
    y = _scale(low, high, HEIGHT, 0)
    lines = [
        f'<text x="0" y="-12" font-weight="bold">{escape(shape)}</text>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#9aa5b1"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT + 32}" text-anchor="middle">tokens for each expert</text>',
        f'<text transform="translate(-40 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">ms</text>',
    ]
    labelled = -math.inf
    for m in tokens:
        if x(m) - labelled >= LABEL_DISTANCE:
            labelled = x(m)
            lines.append(f'<text x="{x(m):.1f}" y="{HEIGHT + 15}" text-anchor="middle">{m:g}</text>')
    for tick in _ticks(cases):
        lines.append(f'<line x1="0" y1="{y(tick):.1f}" x2="{WIDTH}" y2="{y(tick):.1f}" stroke="#e2e6ea"/>')
        lines.append(f'<text x="-6" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for key in dict.fromkeys((*_colour_key(case), case["layout"]) for case in cases):
        line = sorted((c["tokens_per_expert"], c["ms_median"]) for c in cases if (*_colour_key(c), c["layout"]) == key)
        points = " ".join(f"{x(m):.1f},{y(ms):.1f}" for m, ms in line)
        colour = colours[key[:3]]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{DASHES[key[3]]}/>')
        lines += [f'<circle cx="{x(m):.1f}" cy="{y(ms):.1f}" r="2.5" fill="{colour}"/>' for m, ms in line]
    return lines


def _ticks(cases: list[dict]) -> list[float]:
    """1, 2, 5, 10, ... from below the fastest to above the slowest."""
    times = [case["ms_median"] for case in cases]
    decades = range(math.floor(math.log10(min(times))), math.ceil(math.log10(max(times))) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    first = max(i for i, tick in enumerate(ticks) if tick <= min(times))
    last = min(i for i, tick in enumerate(ticks) if tick >= max(times))
    return ticks[first : max(last, first + 1) + 1]


def _scale(low: float, high: float, start: float, end: float):
    """Logarithmic: `low` at `start`, `high` at `end`; a single value in the middle."""
    if low == high:
        return lambda value: (start + end) / 2
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)
