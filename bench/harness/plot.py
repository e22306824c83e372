"""The table as a picture: one row of dots a cell, time as a multiple of the plain copy (1 is the limit). Plain SVG."""

from __future__ import annotations

from html import escape
from math import ceil, log10
from pathlib import Path

from . import report

COLOURS = {
    "normkit": "#c2185b",
    "normkit.torch": "#c2185b",
    "torch": "#ee6c4d",
    "compile": "#f4a259",
    "HF": "#8d6e63",
    "ORT": "#3d5a80",
    "oneDNN": "#2a9d8f",
    "JAX": "#6a4c93",
    "NumPy": "#7f8c8d",
}
LEFT, WIDTH, STEP, TOP = 310, 620, 16, 60


def _row(cell: dict, y: int, x_of) -> list[str]:
    ours = report.our_door(cell)
    parts = [f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(cell["cell"])} t{cell["threads"]}</text>']
    for name, entry in cell["entries"].items():
        if not entry["correct"] or (name.startswith("normkit") and name != ours):
            continue
        x, radius = x_of(entry["seconds"] / cell["copy_seconds"]), 5 if name == ours else 3.5
        title = f"{name}: {entry['seconds'] * 1e6:.1f} us"
        dot = f'<circle cx="{x:.1f}" cy="{y}" r="{radius}" fill="{COLOURS.get(name, "#555")}">'
        parts.append(f"{dot}<title>{title}</title></circle>")
    return parts


def write(run: dict, path: Path) -> None:
    cells = [c for c in run["cells"] if c["entries"]]
    if not cells:
        return
    worst = max(e["seconds"] / c["copy_seconds"] for c in cells for e in c["entries"].values())
    decades = max(1, ceil(log10(worst)))

    def x_of(multiple: float) -> float:
        # Half a decade of room on the left: the copy moves the same bytes, but some cells beat it by a little.
        return LEFT + WIDTH * (log10(max(multiple, 0.4)) + 0.4) / (decades + 0.4)

    height = TOP + STEP * len(cells) + 30
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{height}" '
        'font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">Time as a multiple of a plain copy of the same bytes '
        f"(left is better), {escape(str(run['machine']['cpu']))}</text>",
    ]
    x = LEFT
    for name in dict.fromkeys(n.removesuffix(".torch") for c in cells for n in c["entries"]):
        svg.append(f'<circle cx="{x}" cy="32" r="4" fill="{COLOURS.get(name, "#555")}"/>')
        svg.append(f'<text x="{x + 8}" y="36">{escape(name)}</text>')
        x += 24 + 7 * len(name)
    for decade in range(decades + 1):
        gx = x_of(10**decade)
        svg.append(f'<line x1="{gx:.1f}" y1="{TOP - 8}" x2="{gx:.1f}" y2="{height - 24}" stroke="#ccc"/>')
        svg.append(f'<text x="{gx:.1f}" y="{height - 10}" text-anchor="middle">{10**decade}x</text>')
    for i, cell in enumerate(cells):
        svg += _row(cell, TOP + STEP * i, x_of)
    path.write_text("\n".join([*svg, "</svg>"]) + "\n")
