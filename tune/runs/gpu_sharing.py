"""`--gpus-per-trial auto`: how many trials share a card, and the largest micro-batch, measured before the search.

Small models leave most of a GPU idle. The probe trains for a few seconds on one card: alone with the largest batch of
the space, in smaller passes where that does not fit in memory; then twice, four and eight times at once. More trials
share the card as long as all of them together train on more samples a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tune.cluster import TrialResources, alive_nodes, trial_resources
from tune.display import say
from tune.errors import UserError
from tune.gpu_share import COUNTS, find_share, heaviest, micro_batches, most_sharing, with_share
from tune.workers.trainable import probe_shared

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.probe import Measured
    from tune.experiments.plan import SearchPlan

_SECONDS = 8.0
"""Training that is timed in each measurement."""


def probe_card(
    plan: SearchPlan, data: PreparedData, share: Any, console: Console
) -> tuple[SearchPlan, TrialResources]:
    """The plan with what one card of the cluster says about its trials, and their resources. Ray must be running.

    Without any GPU nothing is measured, and the plan stays.

    Args:
        plan: of a search with `--gpus-per-trial auto`.
        data: the prepared data.
        share: serves the driver's folders to nodes that lack them.
        console: is told what was found.

    Raises:
        UserError: a training cannot run; `ResourceError`: a card has too little memory for a single clip.
    """
    import ray

    nodes = alive_nodes()
    whole = trial_resources(plan.request, nodes)
    if not whole.gpus:
        say(console, "--gpus-per-trial auto: there is no GPU, trials have 0; nothing is measured")
        return plan, whole
    counts = [1, *(count for count in COUNTS if count <= most_sharing(plan, nodes))]
    resources = {
        count: trial_resources(dataclasses.replace(plan.request, gpus_per_trial=1 / count), nodes)
        for count in counts
    }
    cpus = max(count * resources[count].cpus for count in counts)
    with console.status("measuring on one card how many trials share it ..."), _one_card(cpus) as card:
        config, stored = heaviest(plan), ray.put(data)

        def measure(count: int, sizes: Sequence[int]) -> list[list[Measured]]:
            return _at_once(card, resources[count], count, (config, stored, share), sizes)

        found = find_share(measure, micro_batches(plan), counts[-1])
    for line in found.describe():
        say(console, line)
    return with_share(plan, found), resources[found.trials]


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
    card: Any, resources: TrialResources, count: int, what: tuple[Any, ...], sizes: Sequence[int]
) -> list[list[Measured]]:
    """So many trainings at the same time on one card, each with what a trial would have."""
    import ray

    gate = ray.remote(num_cpus=0, max_concurrency=count + 1)(Gate).remote(count) if count > 1 else None
    remote = ray.remote(
        num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0, scheduling_strategy=card
    )(probe_shared)
    tasks = [remote.remote(*what, resources.cpus, sizes, _SECONDS, gate) for _ in range(count)]
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
