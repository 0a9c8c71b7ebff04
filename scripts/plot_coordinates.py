#!/usr/bin/env python3
"""A picture of a coordinate check: sizes and changes of activations over width, both axes logarithmic.

    n research coordinates CONFIG --json > without.json
    n research coordinates CONFIG --set model.scaling.rule=mup --json > with.json
    scripts/plot_coordinates.py without.json with.json docs/coordinates.svg

One column for each file. Needs nothing but Python.
"""

import json
import math
import pathlib
import sys

PANEL, GAP, HEIGHT, LEFT, TOP = 330, 90, 210, 70, 40
COLOURS = ("#4878a8", "#c2543c", "#6a9a4c", "#8a6aa8", "#b8893a")
TEXT = "#777"  # to be read on white and on black
VALUES = (("size", "Root mean square"), ("change", "Change in the steps"))


def text(x, y, what, anchor="start", weight="normal", colour=TEXT):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{what}</text>'


def series(report, value):
    """Of each kind of activation: (dim, value), at the configuration's own depth."""
    lines = {}
    for model in sorted(report["models"], key=lambda model: model["dim"]):
        if model["depth"] != 1:
            continue
        for coordinate in model["coordinates"]:
            if coordinate[value]:
                lines.setdefault(coordinate["what"], []).append((model["dim"], coordinate[value]))
    return lines


def panel(left, top, title, lines, x_range, y_range):
    def x(value):
        return left + PANEL * math.log(value / x_range[0]) / math.log(x_range[1] / x_range[0])

    def y(value):
        return top + HEIGHT - HEIGHT * math.log(value / y_range[0]) / math.log(y_range[1] / y_range[0])

    parts = [text(left, top - 14, title, weight="bold")]
    for power in range(math.ceil(math.log10(y_range[0])), math.floor(math.log10(y_range[1])) + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{left} {at:.1f}h{PANEL}" stroke="{TEXT}" stroke-opacity=".25"/>')
        parts.append(text(left - 8, at + 4, f"1e{power}" if power else "1", "end"))
    for dim in sorted({dim for points in lines.values() for dim, _ in points}):
        parts.append(text(x(dim), top + HEIGHT + 18, f"{dim}", "middle"))
    parts.append(text(left + PANEL / 2, top + HEIGHT + 34, "model.dim", "middle"))
    for (what, points), colour in zip(lines.items(), COLOURS):
        path = "L".join(f"{x(dim):.1f} {y(value):.1f}" for dim, value in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    lowest = -math.inf  # of the names, which stand below each other where lines end together
    ends = sorted((y(points[-1][1]), what, colour) for (what, points), colour in zip(lines.items(), COLOURS))
    for at, what, colour in ends:
        lowest = max(at + 4, lowest + 15)
        parts.append(text(left + PANEL + 6, lowest, what, colour=colour))
    return parts


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    *sources, out = map(pathlib.Path, sys.argv[1:])
    reports = [json.loads(source.read_text()) for source in sources]
    parts = []
    for row, (value, title) in enumerate(VALUES):
        columns = [series(report, value) for report in reports]
        points = [point for lines in columns for line in lines.values() for point in line]
        if len({dim for dim, _ in points}) < 2:
            sys.exit("plot_coordinates: there are fewer than two widths")
        x_range = (min(dim for dim, _ in points), max(dim for dim, _ in points))
        y_range = (min(size for _, size in points) / 1.3, max(size for _, size in points) * 1.3)
        for column, (source, lines) in enumerate(zip(sources, columns)):
            left, top = LEFT + column * (PANEL + GAP + 40), TOP + row * (HEIGHT + 90)
            steps = reports[column]["steps"]
            name = f"{title.replace('the steps', f'{steps} steps')}: {source.stem}"
            parts += panel(left, top, name, lines, x_range, y_range)
    width, height = LEFT + len(sources) * (PANEL + GAP + 40), TOP + 2 * (HEIGHT + 90)
    style = "font-family='system-ui, sans-serif' font-size='13'"
    body = "\n".join(parts)
    out.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>\n{body}\n</svg>\n')


if __name__ == "__main__":
    main()
