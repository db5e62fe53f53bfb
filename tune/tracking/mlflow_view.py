"""How MLflow's page of an experiment looks when `tune-whisper ui` opens it: columns, their order, charts.

MLflow keeps such a shared view as a tag of the experiment, in the form of its own page's state (measured with MLflow
3.17.2). A page that does not know a part of it leaves that part out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tune.tracking.mlflow_runs import GPU_HOURS, LOSS, PARENT, ROLE, SAMPLES, STATUS, WINNER

_SECTION = "the-search"
_OURS = {"isReordered": False, "deleted": False, "isGenerated": False}
_NAME_WIDTH, _FIGURE_WIDTH, _SETTING_WIDTH, _NOTE_WIDTH = 330, 110, 130, 620


def trials_view(
    settings: Sequence[str], objective: str, *, gpus: bool = False, search: str | None = None
) -> str:
    """The view of the trials: best first, WER and searched settings side by side, and how each ended.

    With the id of the search's run only its trials are shown, and not those of an earlier search of the same name.
    """
    best = f"best_{objective}"
    figures = [best, f"{objective}_gain", SAMPLES, *([GPU_HOURS] if gpus else [])]
    always = {_column("attributes", "Run Name"): _NAME_WIDTH, "duration": _FIGURE_WIDTH}
    chosen = {
        **{_column("metrics", name): _FIGURE_WIDTH for name in figures},
        **{_column("tags", name): _FIGURE_WIDTH for name in (STATUS, WINNER)},
        **{_column("params", name): _SETTING_WIDTH for name in settings},
        _column("attributes", "Description"): _NOTE_WIDTH,
    }
    view: dict[str, Any] = {
        "searchFilter": f'tags.{ROLE} = "trial"' + (f' AND tags.`{PARENT}` = "{search}"' if search else ""),
        "orderByKey": _column("metrics", best),
        "orderByAsc": True,
        "selectedColumns": list(chosen),
        "columnOrder": [*always, *chosen],
        "columnWidths": always | chosen,
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": _charts(settings, objective),
        "compareRunSections": [{"uuid": _SECTION, "name": "The search", "display": True, **_OURS}],
    }
    return json.dumps(view)


def _charts(settings: Sequence[str], objective: str) -> list[dict[str, Any]]:
    """Settings against WER, the WER of each trial, and how it came about over the samples seen."""
    best, charts = f"best_{objective}", list[dict[str, Any]]()
    if settings:
        charts.append(
            _chart("PARALLEL", selectedParams=list(settings), selectedMetrics=[best], showAllRuns=True)
        )
        first = {"key": settings[0], "type": "PARAM"}
        charts.append(_chart("SCATTER", xaxis=first, yaxis={"key": best, "type": "METRIC"}))
    charts.append(_line(objective))
    charts.append(_chart("BAR", metricKey=best, displayName=best, runsCountToCompare=20))
    charts.append(_line(LOSS))
    return charts


def _line(metric: str) -> dict[str, Any]:
    return _chart(
        "LINE",
        metricKey=metric,
        displayName=f"{metric} over samples seen",
        selectedMetricKeys=[metric],
        lineSmoothness=0,
        xAxisKey="step",
        xAxisScaleType="linear",
        scaleType="linear",
        useGlobalXaxisKey=True,
        useGlobalLineSmoothing=True,
        yAxisKey="metric",
        yAxisExpressions=[],
        selectedXAxisMetricKey="",
        ignoreOutliers=False,
        range={},
    )


def _chart(kind: str, **parts: Any) -> dict[str, Any]:
    name = str(parts.get("metricKey", "settings"))
    return {
        "type": kind,
        "uuid": f"{kind.lower()}-{name}",
        "runsCountToCompare": 100,
        "metricSectionId": _SECTION,
        **_OURS,
        **parts,
    }


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"
