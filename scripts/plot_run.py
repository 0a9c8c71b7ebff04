#!/usr/bin/env python3
"""A picture of a run: its losses, and how its routers divide the tokens among experts.

    n runs export quickstart --out exported
    scripts/plot_run.py exported/RUN_ID docs/run.svg

Reads scalars.csv and arrays.csv of `n runs export`. Needs nothing but Python. docs/run.svg is of configs/quickstart.toml.
"""

import csv
import pathlib
import sys
from collections import defaultdict

WIDTH, HEIGHT = 860, 280
PANELS = ((60, 360), (480, 360))  # left edge and width of each
TOP, BOTTOM = 40, 240
TRAIN, VALID = "#4878a8", "#c2543c"
EXPERTS = ("#4878a8", "#c2543c", "#6a9a4c", "#8a6aa8")
TEXT = "#777"  # to be read on white and on black


class Panel:
    def __init__(self, index, title, x_range, y_range):
        self.left, self.width = PANELS[index]
        self.x_range, self.y_range = x_range, y_range
        self.parts = [text(self.left, TOP - 16, title, weight="bold")]

    def x(self, value):
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value):
        low, high = self.y_range
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    def axes(self, xs, ys, x_name):
        for value in ys:
            at = self.y(value)
            self.parts.append(
                f'<path d="M{self.left} {at:.1f}h{self.width}" stroke="{TEXT}" stroke-opacity=".25"/>'
                + text(self.left - 8, at + 4, f"{value:g}", anchor="end")
            )
        for value in xs:
            self.parts.append(text(self.x(value), BOTTOM + 18, f"{value:g}", anchor="middle"))
        self.parts.append(text(self.left + self.width / 2, BOTTOM + 34, x_name, anchor="middle"))

    def line(self, points, colour, width=1.6, opacity=1.0):
        low, high = self.y_range
        path = "L".join(f"{self.x(x):.1f} {self.y(min(max(y, low), high)):.1f}" for x, y in points)
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"/>'
        )

    def dots(self, points, colour):
        for x, y in points:
            self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4" fill="{colour}"/>')


def text(x, y, what, anchor="start", weight="normal", colour=TEXT):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{what}</text>'


def read_scalars(folder):
    series = defaultdict(list)
    with open(folder / "scalars.csv", newline="") as file:
        for row in csv.DictReader(file):
            series[row["tag"]].append((int(row["step"]), float(row["value"])))
    return series


def read_loads(folder):
    """Of each expert of all layers: its tokens by step, 1 being an equal share."""
    by_step = defaultdict(dict)
    with open(folder / "arrays.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["tag"].startswith("router/") and row["tag"].endswith("/load"):
                by_step[row["tag"], int(row["step"])][int(row["index"])] = float(row["value"])
    lines = defaultdict(list)
    for (tag, step), loads in sorted(by_step.items()):
        mean = sum(loads.values()) / len(loads)
        for expert, load in loads.items():
            lines[tag, expert].append((step, load / mean))
    return lines


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    scalars, loads = read_scalars(folder), read_loads(folder)
    train, valid = scalars["train/bpb"], scalars["valid/bpb"]
    if not train or not valid:
        sys.exit(f"plot_run: {folder} has no loss of training or none of validation: export a run that has validated")
    steps = (0, max(step for step, _ in train))
    ticks = [steps[1] * i // 5 for i in range(6)]

    losses = Panel(0, "Bits per byte", steps, (1.4, 3.0))
    losses.axes(ticks, (1.4, 1.8, 2.2, 2.6, 3.0), "step")
    losses.line(train, TRAIN)
    losses.dots(valid, VALID)
    step, last = valid[-1]
    losses.parts.append(text(losses.x(step) - 8, losses.y(last) - 24, f"held out: {last:.3f}", "end", colour=VALID))
    losses.parts.append(text(losses.x(steps[1] * 0.12), losses.y(2.5), "training", colour=TRAIN))

    routers = Panel(1, "Tokens of each expert, of all layers (1: an equal share)", steps, (0, 3))
    routers.axes(ticks, (0, 1, 2, 3), "step")
    layers = sorted({tag for tag, _ in loads})
    for (tag, _), points in sorted(loads.items()):
        routers.line(points, EXPERTS[layers.index(tag) % len(EXPERTS)], width=0.8, opacity=0.55)

    style = "font-family='system-ui, sans-serif' font-size='13'"
    body = "\n".join(losses.parts + routers.parts)
    pathlib.Path(sys.argv[2]).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    main()
