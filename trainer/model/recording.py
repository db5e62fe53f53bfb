"""Steps of decoding recorded as CUDA graphs, so that a GPU is given a step at once instead of hundreds of operations.

It has not been run on a GPU yet.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TypeAlias

import torch

from trainer.memory import is_out_of_memory

Step: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]"
"""Gives scores (B, vocabulary) of what follows tokens (B, 1), which stand at one place (1,), from so many positions."""

_logger = logging.getLogger(__name__)


class Recorder:
    """Plays steps that have the same shapes from their records, which it makes when they come first.

    A record reads and writes the same memory each time: what a step uses besides its tokens and place has to stay
    where it is, and scores are overwritten by the next step. Where recording fails, steps are taken one by one.
    """

    def __init__(self, clips: int, device: torch.device) -> None:
        """For at most so many clips."""
        self._tokens = torch.zeros(clips, 1, dtype=torch.long, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._records: dict[tuple[int, int], Callable[[], torch.Tensor]] = {}
        self._works = True

    def take(self, step: Step, tokens: torch.Tensor, place: int, reach: int) -> torch.Tensor:
        """The scores of a step."""
        shape = (len(tokens), reach)
        self._tokens[: len(tokens)].copy_(tokens)
        self._place.fill_(place)
        work = functools.partial(step, self._tokens[: len(tokens)], self._place, reach)
        if shape not in self._records and self._works:
            try:
                self._records[shape] = record_graph(work)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self._works = False
                reason = str(error).partition("\n")[0]
                _logger.warning("CUDA graphs: %s; decoding goes on without them", reason)
        return self._records.get(shape, work)()


def record_graph(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Record work on a GPU; what is returned does it again, on the same memory.

    Raises:
        RuntimeError: it cannot be recorded.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        work()  # libraries choose their kernels and take their memory
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads may go on meanwhile, such as those that load batches.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = work()
    except RuntimeError:
        torch.cuda.set_stream(current)  # PyTorch (2.13) leaves it at its own where the end of a record fails
        torch.cuda.synchronize()
        raise

    def play() -> torch.Tensor:
        graph.replay()
        return result

    return play
