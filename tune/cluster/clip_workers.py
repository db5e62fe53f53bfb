"""Processes on all nodes of a cluster that compute features, where they see the files with audio as the driver does."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.audio import AudioError
from trainer.data.parallel import Processes, Task, cores

if TYPE_CHECKING:
    from trainer.data.audio import AudioSource, Heard

_CLIPS_EACH = 250
"""Fewer are not worth the seconds that a process takes to start."""
_MOST = 64
"""More would wait for the driver, which writes what they compute."""
_PATIENCE = 60.0
"""Seconds after which the driver computes itself, though its node has no CPUs in Ray's count: the others are busy."""
_LOOK_SECONDS = 0.5


def cluster_workers(say: Callable[[str], None]) -> Callable[[Task[Any], int], ClipWorkers] | None:
    """What makes them for a task and so many clips; None where the driver's node is the only one with CPUs.

    Args:
        say: is told, by any thread, which nodes help and which cannot.
    """
    import ray

    here = ray.get_runtime_context().get_node_id()
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    own = cpus.pop(here, 0)
    if not any(cpus.values()):
        return None
    return lambda task, clips: ClipWorkers(task, clips, cpus, bool(own), say)


@dataclasses.dataclass(order=True)
class _Job:
    number: int
    sources: list[AudioSource] = dataclasses.field(compare=False)
    files: dict[str, _State] = dataclasses.field(compare=False)
    """As the driver sees them."""
    outcome: Future[list[Any]] = dataclasses.field(compare=False)
    here: bool = dataclasses.field(default=False, compare=False)
    """Whether the driver's machine has to do it."""


_State = tuple[int, int] | None
"""Size in bytes and time of modification in seconds; None where there is no such file."""


class ClipWorkers:
    """The processes: each takes the first job that waits, so that none waits for a slow one.

    Those of other nodes are actors with a CPU of Ray's count each. A job whose actor is lost is done by another. The
    driver's machine does what no other can, and its share unless its node has no CPUs in Ray's count.
    """

    def __init__(
        self, task: Task[Any], clips: int, cpus: dict[str, int], share: bool, say: Callable[[str], None]
    ) -> None:
        self._task, self._share, self._say = task, share, say
        self._here = Processes(task, cores())
        self._waiting: list[_Job] = []
        self._change = threading.Condition()
        self._closed, self._submitted, self._begun = False, 0, time.monotonic()
        places = [node for row in range(max(cpus.values())) for node, count in cpus.items() if row < count]
        places = places[: min(_MOST, -(-clips // _CLIPS_EACH))]
        self._elsewhere, self._helping, self._blind = len(places), 0, set[str]()
        self.size = len(places) + self._here.size * share
        self._threads = [threading.Thread(target=self._serve_here, daemon=True) for _ in range(cores())]
        self._threads += [
            threading.Thread(target=self._serve_from, args=(node,), daemon=True) for node in places
        ]
        for thread in self._threads:
            thread.start()
        nodes = len(set(places))
        say(f"features are computed on {nodes} other node{'s' * (nodes > 1)} of the cluster{' too' * share}")

    def submit(self, sources: list[AudioSource]) -> Future[list[Any]]:
        """Hand some clips to the next that is free."""
        files = {str(one.file): _state(one.file) for one in sources if not isinstance(one.file, bytes)}
        job = _Job(self._submitted, sources, files, Future())
        self._submitted += 1
        self._put(job)
        return job.outcome

    def close(self) -> None:
        """End them; those of this machine once they have done what they are at."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        self._here.close()

    def _put(self, job: _Job) -> None:
        with self._change:
            self._waiting.append(job)
            self._change.notify_all()

    def _next(self, *, here: bool) -> _Job | None:
        """The first job that may be done there; None once there is nothing more to do."""
        with self._change:
            while not self._closed:
                late = not self._helping and time.monotonic() - self._begun > _PATIENCE
                any_job = here and (self._share or not self._elsewhere or late)
                found = [job for job in self._waiting if any_job or job.here == here]
                if found:
                    job = min(found)
                    self._waiting.remove(job)
                    return job
                self._change.wait(_LOOK_SECONDS)
        return None

    def _serve_here(self) -> None:
        while (job := self._next(here=True)) is not None:
            try:
                asked = self._here.submit(job.sources)
                error = asked.exception()
            except (
                BrokenProcessPool,
                OSError,
            ) as broken:  # by what another thread had asked for; none can be started
                error = broken
            if error is None:
                job.outcome.set_result(asked.result())
            else:
                job.outcome.set_exception(error)

    def _serve_from(self, node: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        job, actor, begun = None, None, False
        try:
            actor = ray.remote(num_cpus=1, scheduling_strategy=place)(_Elsewhere).remote(self._task)
            self._get(actor.begin.remote())
            with self._change:
                self._helping, begun = self._helping + 1, True
            while (job := self._next(here=False)) is not None:
                outcomes = self._get(actor.run.remote(job.sources, job.files))
                if isinstance(outcomes, str):
                    self._is_blind(node, outcomes)
                    return
                job.here = outcomes is None
                if job.here:
                    self._put(job)
                else:
                    job.outcome.set_result(outcomes)
                job = None
        except _ClosedError:
            pass
        except ray.exceptions.RayTaskError as error:
            if job is None:
                raise
            job.outcome.set_exception(error)
            job = None
        except ray.exceptions.RayError:  # the actor or its node is lost
            pass
        finally:
            with self._change:
                self._elsewhere -= 1
                self._helping -= begun
                self._begun = time.monotonic()  # the others are waited for anew
            if job is not None:
                self._put(job)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)

    def _get(self, asked: Any) -> Any:
        """The answer of an actor; raises `_ClosedError` where nobody waits for it any more."""
        import ray

        while not ray.wait([asked], timeout=_LOOK_SECONDS)[0]:
            if self._closed:
                raise _ClosedError
        return ray.get(asked)

    def _is_blind(self, node: str, file: str) -> None:
        with self._change:
            known = node in self._blind
            self._blind.add(node)
        if not known:
            import ray

            [address] = [each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node]
            self._say(
                f"note: the node {address} does not see {file} as it is here, so it computes no features; data on a "
                "disk that all nodes share is faster"
            )


class _ClosedError(Exception):
    """Nothing is asked any more."""


class _Elsewhere:
    """The actor."""

    def __init__(self, task: Task[Any]) -> None:
        if task.start is not None:
            task.start()
        self._unread = False
        self._task = dataclasses.replace(task, compute=self._compute_noted)
        self._compute = task.compute

    def begin(self) -> None:
        """It is there once this returns."""

    def run(self, sources: Sequence[AudioSource], files: dict[str, _State]) -> list[Any] | str | None:
        """What comes of each clip; a file that this node sees otherwise than the driver; None where one of the files
        cannot be read, as the driver has to see for itself.
        """
        other = next((file for file, state in files.items() if _state(file) != state), None)
        if other is not None:
            return other
        self._unread = False
        outcomes = list(self._task.run(sources))
        return None if self._unread else outcomes

    def _compute_noted(self, source: AudioSource, heard: Heard | AudioError) -> Any:
        if isinstance(heard, AudioError) and heard.reason == "unreadable_audio":
            self._unread = True
        return self._compute(source, heard)


def _state(file: str | Path | bytes) -> _State:
    try:
        status = Path(str(file)).stat()
    except (OSError, ValueError):
        return None
    return status.st_size, int(status.st_mtime)
