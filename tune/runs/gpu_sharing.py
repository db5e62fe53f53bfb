"""`--gpus-per-trial auto`: how many trials share a card, and the largest micro-batch, measured before the search.

Small models leave most of a GPU idle. The probe trains for a few seconds on one card: alone with the largest batch of
the space, in smaller passes where that does not fit in memory; then twice, four and eight times at once. More trials
share the card as long as all of them together train on more samples a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tune.cluster.resources import Node, TrialResources
from tune.cluster.session import alive_nodes
from tune.util.errors import ResourceError, UserError
from tune.workers.inputs import TrialInputs
from tune.workers.trainable import probe_shared

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.probe import Measured
    from tune.experiments.plan import SearchPlan
    from tune.runs.session import Session

_SECONDS = 8.0
"""Training that is timed in each measurement."""
COUNTS = (2, 4, 8)
"""Trials on a card that are tried."""
_GAIN = 1.1
"""More trials must bring so many times the samples per second: below it each would only take longer."""
_USABLE = 0.9
"""Of a card's memory: what trials take moves about."""
_HEAVIEST = {
    "gradient_checkpointing": False,
    "method": "full",
    "lora_targets": "attention and feed-forward",
    "freeze_encoder_layers": 0,
    "spec_augment": True,
    "precision": "fp32",
    "optimizer": "adamw",
}
_HEAVIER = (
    "lora_rank",
    "dropout",
    "ema_decay",
    "label_smoothing",
    "audio_window",
    "augment",
    "augment_strength",
    "augment_speed",
)
"""Searched settings that change what a step takes: the value that takes most, and those of which more takes more."""
Measure: TypeAlias = "Callable[[int, Sequence[int]], list[list[Measured]]]"
"""Measures so many trainings at once, each with the first of these micro-batches that fits."""


def share_gpus(session: Session[SearchPlan]) -> None:
    """Where that was asked for, have one card of the cluster say how many trials share it; plan and resources follow.

    Without any GPU nothing is measured, and the plan stays.

    Raises:
        UserError: a training cannot run; `ResourceError`: a card has too little memory for a single clip.
    """
    plan = session.plan
    if plan.request.gpus_per_trial != "auto":
        return
    if not session.resources.gpus:
        session.say("--gpus-per-trial auto: there is no GPU, trials have 0; nothing is measured")
        return
    nodes = alive_nodes()
    counts = [1, *(count for count in COUNTS if count <= most_sharing(plan, nodes))]
    resources = {count: dataclasses.replace(plan.resources, gpus=1 / count).fit(nodes) for count in counts}
    cpus = max(count * resources[count].cpus for count in counts)
    inputs = session.inputs(heaviest(plan))  # which asks the cards; then one is held
    with (
        session.console.status("measuring on one card how many trials share it ..."),
        _one_card(cpus) as card,
    ):

        def measure(count: int, sizes: Sequence[int]) -> list[list[Measured]]:
            return _at_once(card, resources[count], count, inputs, sizes)

        found = find_share(measure, micro_batches(plan), counts[-1])
    for line in found.describe():
        session.say(line)
    session.plan, session.resources = with_share(plan, found), resources[found.trials]


class Gate:
    """Lets so many trainings begin at once; an actor of Ray's."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)

    def wait(self) -> bool:
        """Return when all are here; false where the gate was closed, since one of them cannot come."""
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            return False
        return True

    def close(self) -> None:
        """Let nobody through any more."""
        self._barrier.abort()


@contextlib.contextmanager
def _one_card(cpus: float) -> Iterator[Any]:
    """Where Ray is to put tasks that share one card: it is held, with CPUs of its node, as long as the block lasts."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # One bundle: of several, each might be given another card.
    group = placement_group([{"GPU": 1.0, **({"CPU": cpus} if cpus else {})}])
    try:
        yield PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    finally:
        remove_placement_group(group)


def _at_once(
    card: Any, resources: TrialResources, count: int, inputs: TrialInputs, sizes: Sequence[int]
) -> list[list[Measured]]:
    """So many trainings at the same time on one card, each with what a trial would have."""
    import ray

    gate = ray.remote(num_cpus=0, max_concurrency=count + 1)(Gate).remote(count) if count > 1 else None
    remote = ray.remote(
        num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0, scheduling_strategy=card
    )(probe_shared)
    inputs = dataclasses.replace(inputs, cpus=resources.cpus, gpus=resources.gpus)
    tasks = [remote.remote(inputs, sizes, _SECONDS, gate) for _ in range(count)]
    try:
        return _gather(tasks, gate)
    finally:
        if gate is not None:
            ray.kill(gate)


def _gather(tasks: Sequence[Any], gate: Any) -> list[list[Measured]]:
    """What the tasks return; where one cannot train, the others need not wait for it.

    Raises:
        UserError: the mistake of the user's that the first of them met.
        RayError: any other error.
    """
    import ray

    found: list[list[Measured]] = []
    failed: ray.exceptions.RayError | None = None
    pending = list(tasks)
    while pending:
        (task,), pending = ray.wait(pending)
        try:
            found.append(ray.get(task))
        except ray.exceptions.RayError as error:
            failed = failed or error
        if gate is not None and (failed is not None or not found[-1] or not found[-1][-1].fits):
            gate.close.remote()
    if failed is not None:
        cause = getattr(failed, "cause", None)
        if isinstance(cause, UserError):
            raise cause from failed
        raise failed
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardShare:
    """What the probe found."""

    trials: int
    """Trials that share a card."""
    rates: Mapping[int, float | None]
    """Samples per second of all together, by the number of trials at once; None where memory ran out."""
    micro_batch: int
    """Clips in a forward pass with which it was measured."""
    too_large: int | None = None
    """The smallest micro-batch that ran out of memory."""
    peak_bytes: int | None = None
    """Most memory of one trial; None where it is not known."""
    total_bytes: int | None = None
    """The card's memory."""

    def describe(self) -> list[str]:
        """A line of what was measured and chosen, and one of the micro-batch where that was cut."""
        memory = ""
        if self.peak_bytes is not None and self.total_bytes is not None:
            memory = f" and {self.peak_bytes / 2**30:.1f} of {self.total_bytes / 2**30:.0f} GiB"
        told = [f"1 trial {_describe_rate(self.rates[1])} samples/s{memory}"]
        told += [f"{trials}: {_describe_rate(rate)}" for trials, rate in self.rates.items() if trials > 1]
        chosen = (
            f"{self.trials} trials share a card" if self.trials > 1 else "each trial has a card of its own"
        )
        lines = [f"card probe: {', '.join(told)}; {chosen}"]
        if self.too_large is not None:
            lines.append(
                f"micro-batch: {self.too_large} clips ran out of memory, {self.micro_batch} fit; larger batches are "
                "cut into equal passes, which changes no gradient"
            )
        return lines


def with_share(plan: SearchPlan, found: CardShare) -> SearchPlan:
    """The plan with what was found as if it had been asked for."""
    request, limit = plan.request, plan.space.fixed.get("micro_batch")
    settings = dict(request.settings)
    if found.too_large is not None:
        settings["micro_batch"] = limit = found.micro_batch
    request = dataclasses.replace(request, gpus_per_trial=1 / found.trials, settings=settings)
    return dataclasses.replace(plan, request=request, base=plan.base.replace(micro_batch=limit))


def find_share(measure: Measure, sizes: Sequence[int], most: int) -> CardShare:
    """Measure until it is clear how many trials share a card.

    Args:
        measure: does it.
        sizes: micro-batches to try, the largest first, in the end 1.
        most: trials on a card at most.

    Raises:
        ResourceError: not even one clip fits.
    """
    (alone,) = measure(1, sizes)
    fitting = alone[-1]
    if not fitting.fits:
        raise ResourceError(
            "--gpus-per-trial auto: not even a training in passes of one clip, with its evaluation, fits in the card's "
            "memory; take a smaller model, --set eval_batch_size=1 or --set gradient_checkpointing=true"
        )
    peak, total = fitting.peak_bytes, fitting.total_bytes
    rates: dict[int, float | None] = {1: fitting.samples_per_second}
    best = 1
    for trials in COUNTS:
        full = peak is not None and total is not None and trials * peak > _USABLE * total
        if trials > most or full:
            break
        found = [one[-1].samples_per_second for one in measure(trials, [fitting.micro_batch]) if one]
        fast = [rate for rate in found if rate is not None]
        rates[trials] = rate = sum(fast) if len(fast) == trials else None
        before = rates[best]
        if rate is None or before is None or rate < _GAIN * before:
            break
        best = trials
    return CardShare(
        trials=best,
        rates=rates,
        micro_batch=fitting.micro_batch,
        too_large=alone[-2].micro_batch if len(alone) > 1 else None,
        peak_bytes=peak,
        total_bytes=total,
    )


def most_sharing(plan: SearchPlan, nodes: Sequence[Node]) -> int:
    """Trials on a card for which there are CPUs, one each unless asked otherwise, and for which it takes all cards."""
    request = plan.request
    able = [node for node in nodes if node.get("GPU", 0.0) >= 1]
    cards = sum(int(node["GPU"]) for node in able)
    by_cpus = min((node.get("CPU", 0.0) / node["GPU"] for node in able), default=0.0) / (
        request.cpus_per_trial or 1.0
    )
    wanted = min(request.trials, request.max_concurrent or request.trials)
    fitting = [count for count in COUNTS if count <= by_cpus + 1e-9 and count // 2 * cards < wanted]
    return max(fitting, default=1)


def micro_batches(plan: SearchPlan) -> list[int]:
    """Sizes to try: the largest batch of the space, or the limit that was given for a forward pass; halves of it."""
    size = min(plan.largest_batch, plan.space.fixed.get("micro_batch") or plan.largest_batch)
    sizes = [size]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def heaviest(plan: SearchPlan) -> TrainConfig:
    """The settings of that trial of the space whose steps take most."""
    changes: dict[str, Any] = {}
    for name, parameter in plan.space.parameters.items():
        if name in _HEAVIEST and parameter.contains(_HEAVIEST[name]):
            changes[name] = _HEAVIEST[name]
        elif name in _HEAVIER:
            values = getattr(parameter, "values", None) or [getattr(parameter, "high", None)]
            numbers = [value for value in values if isinstance(value, int | float)]
            changes[name] = max(numbers, default=values[0])
    return plan.base.replace(**changes)


def _describe_rate(rate: float | None) -> str:
    if rate is None:
        return "out of memory"
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
