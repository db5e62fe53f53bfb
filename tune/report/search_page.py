"""The page of a search: its parts in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tune.pages import page
from tune.pages.page import Cell, Column
from tune.pages.pictures import Picture
from tune.report.analysis import Analysis
from tune.report.draw_map import draw_map
from tune.report.draw_progress import draw_curves, draw_history
from tune.report.draw_result import draw_contenders, draw_costs
from tune.report.draw_settings import draw_importances, draw_parallel, draw_slices
from tune.report.importances import LEAST_TRIALS
from tune.report.known import Experiment, short_source
from tune.report.page_end import commands, data_parts, page_footer, state_text
from tune.report.page_result import advice_parts, result_parts
from tune.report.page_trials import cost_parts, trial_parts
from tune.report.words import Advice

_LEAST_TO_COMPARE = 3
"""Trials below which pictures of the settings show nothing."""
_NAMED_VERSIONS = ("tune-whisper", "python", "torch", "transformers", "ray", "optuna")


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of a search; None for what there is nothing to show of."""

    contenders: Picture | None
    history: Picture | None
    curves: Picture | None
    importances: Picture | None
    map: Picture | None
    slices: list[Picture]
    parallel: Picture | None
    cost: Picture | None

    def all(self) -> list[Picture]:
        """Those that there are, in the order of the page."""
        single = (self.contenders, self.history, self.curves, self.importances, self.map)
        return [shown for shown in (*single, *self.slices, self.parallel, self.cost) if shown is not None]


def draw_search(analysis: Analysis) -> Pictures:
    """All pictures of a search."""
    experiment, expected, order = analysis.experiment, analysis.expected, analysis.settings_order
    compare = len(analysis.ranked) >= _LEAST_TO_COMPARE
    ranked, won = [found.name for found in analysis.importances], experiment.has_ended
    return Pictures(
        contenders=draw_contenders(analysis.contenders, won=won) if analysis.winner else None,
        history=draw_history(experiment),
        curves=draw_curves(experiment),
        importances=draw_importances(analysis.importances, len(expected)) if ranked else None,
        map=draw_map(experiment, expected, ranked[0], ranked[1]) if ranked else None,
        slices=draw_slices(experiment, expected, order) if compare else [],
        parallel=draw_parallel(experiment, expected, order) if compare and len(order) > 1 else None,
        cost=draw_costs(analysis.costs),
    )


def search_page(analysis: Analysis, pictures: Pictures, advice: Sequence[Advice]) -> str:
    """The page as HTML."""
    experiment = analysis.experiment
    parts = [
        *result_parts(analysis, pictures.contenders),
        *advice_parts(advice),
        *_searched(experiment),
        *_progress(pictures),
        *_settings(analysis, pictures),
        *trial_parts(experiment),
        *cost_parts(analysis.costs, pictures.cost),
        *data_parts(experiment),
        page.heading("Going on"),
        commands(experiment),
    ]
    return page.render_page(experiment.name, _lead(experiment), parts, footer=page_footer(experiment))


def _lead(experiment: Experiment) -> str:
    config, created = experiment.settings["train_config"], experiment.settings.get("created")
    data = short_source(str(config["data"]))
    text = f"Search for fine-tuning {experiment.model} on {data}, {config.get('language')} · {state_text(experiment)}"
    return f"{text} · begun {str(created)[:16].replace('T', ' ')}" if created else text


def _searched(experiment: Experiment) -> list[str]:
    settings, config = experiment.settings, experiment.settings["train_config"]
    searched: list[list[Cell]] = [
        [page.code(name), parameter.describe()] for name, parameter in experiment.parameters.items()
    ]
    versions = settings.get("versions", {})
    steps, clips = config.get("max_steps"), int(settings["clips"].get("train", 0))
    budget = f"{steps} steps" if steps else f"{experiment.budget / max(1, clips):.3g} epochs"
    rungs = ", ".join(f"{rung:,}" for rung in experiment.rungs)
    about: list[list[Cell]] = [
        ["model", str(config["model"])],
        ["data", f"{config['data']}, language {config.get('language')}, {config.get('task')}"],
        ["budget of a trial", f"{experiment.budget:,} samples seen ({budget})"],
        ["rungs", f"{rungs} samples seen: where trials are measured, and the worse ones stopped"],
        ["hardware", f"{_held(settings['resources'])}; {versions.get('platform', '')}".rstrip("; ")],
        ["versions", ", ".join(f"{name} {versions[name]}" for name in _NAMED_VERSIONS if name in versions)],
        ["seed", str(settings.get("seed"))],
    ]
    return [
        page.heading("What was searched"),
        page.table([Column("setting"), Column("values")], searched),
        page.table([Column(""), Column("")], about),
    ]


def _held(resources: dict[str, float]) -> str:
    """What a trial takes, and how many ran at a time."""
    gpus = f"{resources['gpus']:g} GPU and " if resources["gpus"] else ""
    workers = f" for {resources['workers']} workers" if resources.get("workers", 1) > 1 else ""
    return f"{gpus}{resources['cpus']:g} CPU a trial{workers}, {resources['concurrent']} at a time"


def _progress(pictures: Pictures) -> list[str]:
    shown = [page.picture(picture) for picture in (pictures.history, pictures.curves) if picture is not None]
    return [page.heading("How the search went"), page.gallery(shown)] if shown else []


def _settings(analysis: Analysis, pictures: Pictures) -> list[str]:
    if not pictures.slices:
        return []
    parts = [page.heading("What the settings did")]
    if pictures.importances is None and len(analysis.experiment.parameters) > 1:
        text = (
            f"Too few trials to tell how much each setting matters: {len(analysis.expected)} compare, and "
            f"{LEAST_TRIALS} are the least."
        )
        parts.append(page.paragraph(text, "muted"))
    pair = [picture for picture in (pictures.importances, pictures.map) if picture is not None]
    parts.append(page.gallery([page.picture(picture) for picture in pair]))
    text = (
        "A filled mark is a trial with its whole budget. A hollow one was stopped early and stands at what it would "
        "have come to, by what others gained later. The star is the winner, a dashed line the base model."
    )
    parts += [page.heading("One setting at a time", 3), page.paragraph(text, "muted")]
    parts.append(page.gallery([page.picture(picture) for picture in pictures.slices], small=True))
    if pictures.parallel is not None:
        parts += [page.heading("All settings at once", 3), page.picture(pictures.parallel, wide=True)]
    return parts
