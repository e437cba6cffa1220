"""The figure of the README, from the JSON of a demo: `ort-hina demo --json demo.json; python -m bench.figure demo.json docs/demo.svg`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

COLUMNS = (("pytorch", "PyTorch", "#9aa5b1"), ("unfused", "ONNX, as exported", "#5b8db8"), ("fused", "ONNX, fused", "#d9822b"))
PANELS = (
    ("session creation, s", "load_seconds", "{:.2f}", 1.0),
    ("private memory, MB", "private_bytes", "{:.0f}", 1e-6),
    ("prefill, tokens/s", "prefill_tokens_per_second", "{:,.0f}", 1.0),
    ("decode, tokens/s", "decode_tokens_per_second", "{:,.0f}", 1.0),
)
PANEL_WIDTH, PANEL_HEIGHT, BAR, GAP, TOP = 190, 120, 40, 14, 56


def panel(report: dict, place: int, title: str, key: str, form: str, factor: float) -> list[str]:
    values = [(report[name][key] or 0) * factor for name, _, _ in COLUMNS]
    most = max(values) or 1
    left = place * PANEL_WIDTH + 20
    lines = [f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{title}</text>']
    for i, (value, (_, _, colour)) in enumerate(zip(values, COLUMNS, strict=True)):
        height = PANEL_HEIGHT * value / most
        x, y = left + i * (BAR + GAP), TOP + 14 + PANEL_HEIGHT - height
        lines.append(f'<rect x="{x}" y="{y:.1f}" width="{BAR}" height="{height:.1f}" fill="{colour}"/>')
        lines.append(f'<text x="{x + BAR / 2}" y="{y - 4:.1f}" text-anchor="middle">{form.format(value)}</text>')
    return lines


def figure(report: dict) -> str:
    width, height = len(PANELS) * PANEL_WIDTH + 20, TOP + PANEL_HEIGHT + 44
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, (_, label, colour) in enumerate(COLUMNS):
        x = 20 + i * 160
        lines.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="18">{label}</text>')
    for place, arguments in enumerate(PANELS):
        lines += panel(report, place, *arguments)
    lines.append(
        f'<text x="20" y="{height - 8}" fill="#555" font-size="10">{report["model"]}, {report["weights_bytes"] / 1e6:.0f} MB; '
        f'{report["threads"]} CPUs, {report["kernels"]}; {report["prompt_tokens"]} prompt tokens, '
        f'{report["new_tokens"]} new; same tokens from all three</text>'
    )
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.figure", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    if not report["tokens_identical"]:
        raise SystemExit("the three did not write the same tokens: there is nothing to show")
    arguments.output.write_text(figure(report), encoding="utf-8")


if __name__ == "__main__":
    main()
