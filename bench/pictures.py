"""Latency distributions as SVG in ``docs/explanation``, drawn from what the rows just found."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.contenders import OURS, PROCESS
from bench.measure import Found

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "kvevents"
mpl.rcParams["svg.fonttype"] = "none"
plt: Any = importlib.import_module("matplotlib.pyplot")

FOLDER = Path(__file__).parent.parent / "docs" / "explanation"
LABELS = {
    OURS: "kvevents",
    PROCESS: "kvevents, sender process",
    "sglang": "SGLang 0.5.23",
    "vllm": "vLLM 0.33.0",
    "none": "no publisher",
}
COLOURS = {
    OURS: "#1b7837",
    PROCESS: "#7fbf7b",
    "sglang": "#c2571a",
    "vllm": "#3b5fa0",
    "none": "#999999",
}
PERCENTS = [*range(100), 99.5, 99.9, 100]


def draw() -> None:
    """Draw every picture whose figures are there."""
    from bench import burst, paced, starved

    if paced.FOUND:
        panels = {"16 tokens": paced.FOUND["a"], "4,096 tokens": paced.FOUND["c"]}
        _picture("publish", panels, "one publish() call, microseconds", 1.0)
        readers = {"16 tokens": paced.FOUND["reader a"], "4,096 tokens": paced.FOUND["reader c"]}
        _picture("reader-latency", readers, "batch made until read, milliseconds", 1e-3)
    if starved.FOUND:
        busy = {
            "16 tokens": starved.FOUND["reader 1000 a"],
            "4,096 tokens": starved.FOUND["reader 1000 c"],
        }
        what = "batch made until read beside a main thread that never rests, milliseconds"
        _picture("starved", busy, what, 1e-3)
    if burst.FOUND:
        what = "one publish() call in a burst of 200,000, microseconds"
        _picture("burst", {"16 tokens": burst.FOUND["burst"]}, what, 1.0)


def _picture(name: str, panels: dict[str, Found], what: str, scale: float) -> None:
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels) + 0.8, 3.2), sharey=True, squeeze=False
    )
    for axis, (title, found) in zip(axes[0], panels.items(), strict=True):
        for contender, trials in found.trials.items():
            if not trials:
                continue
            curve = [max(1e-3, point * scale) for point in found.curve(contender)]
            axis.plot(curve, PERCENTS, label=LABELS[contender], color=COLOURS[contender], lw=1.6)
        axis.set_xscale("log")
        axis.set_title(title, fontsize=9)
        axis.grid(visible=True, which="major", lw=0.4, color="#cccccc")
        axis.set_yticks([0, 25, 50, 75, 90, 99])
        axis.tick_params(labelsize=8)
    axes[0][0].set_ylabel(
        "% of calls at most" if scale == 1.0 else "% of batches at most", fontsize=8
    )
    axes[0][-1].legend(fontsize=8, loc="lower right")
    figure.supxlabel(what, fontsize=9)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
