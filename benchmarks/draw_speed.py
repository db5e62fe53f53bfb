"""The picture of the speed benchmarks, from their JSON files.

python benchmarks/draw_speed.py --throughput FILE --searches FILE [FILE] --output PICTURE
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {"ray_plain": "#b3541e", "hf_search": "#6d6d6d", "ours": "#1a7f4b"}
NAMES = {"ray_plain": "ray-plain", "hf_search": "hf-search", "ours": "ours"}


def draw_ratios(axes: Any, found: dict[str, Any]) -> None:
    """How many times as long the hand-made script takes, with the range over the repeats."""
    ratios = {name: values for name, values in found["ratios"].items() if " / " in name}
    for place, values in enumerate(reversed(ratios.values())):
        middle = statistics.median(values)
        axes.barh(place, middle, color=COLOURS["ours"], height=0.6)
        axes.plot([min(values), max(values)], [place, place], color="black", linewidth=1.5)
        axes.text(max(values) + 0.15, place, f"{middle:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(ratios)), list(reversed(list(ratios))), fontsize=8)
    axes.set_xlim(right=1.1 * max(max(values) for values in ratios.values()))
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("time of the hand-made script / ours", fontsize=9)
    axes.set_title(f"Steps and evaluations: whisper-{found['shape']}, {found['device']}", fontsize=10)


def draw_searches(axes: Any, rows: dict[str, Any], title: str) -> None:
    """The best WER by then over the seconds since a search was called, a line for each seed."""
    for row in rows.values():
        for name, search in row.items():
            seconds = [point[0] for point in search["timeline"]] + [search["seconds"]]
            rates = [point[1] for point in search["timeline"]] + [search["timeline"][-1][1]]
            axes.step(seconds, rates, where="post", color=COLOURS[name], linewidth=1.4, alpha=0.8)
    for name, colour in COLOURS.items():
        axes.plot([], [], color=colour, label=NAMES[name])
    axes.legend(fontsize=8)
    axes.set_xlim(left=0)
    axes.set_yscale("log")
    axes.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_xlabel("seconds since the command was given", fontsize=9)
    axes.set_ylabel("best WER so far, %", fontsize=9)
    axes.set_title(title, fontsize=10)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--throughput", type=Path, required=True)
    parser.add_argument("--searches", type=Path, nargs="*", default=[])
    parser.add_argument("--titles", nargs="*", default=["Searches on the demo", "Searches, window of 30 s"])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    figure = Figure(figsize=(7.2, 3.0 * (1 + len(arguments.searches))), layout="constrained")
    panels = figure.subplots(1 + len(arguments.searches), 1, squeeze=False)[:, 0]
    draw_ratios(panels[0], json.loads(arguments.throughput.read_text()))
    for axes, path, title in zip(panels[1:], arguments.searches, arguments.titles, strict=False):
        draw_searches(axes, json.loads(path.read_text()), title)
    figure.savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    main()
