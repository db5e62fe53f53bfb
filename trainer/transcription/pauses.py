"""Where speech is in a recording, and where it can be cut: at pauses that silero-vad's model of speech finds.

A Whisper that was fine-tuned on clips without timestamps cannot tell where in its window it stopped, so an algorithm
that goes on from there would lose or repeat words. Cuts that are made before decoding, in pauses, lose none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainer.data.audio import SAMPLE_RATE
from trainer.threads import one_torch_thread
from trainer.transcription.loudness import regroup

if TYPE_CHECKING:
    import numpy as np

FRAME = 512
"""Samples for which the model gives one probability: 32 ms."""
MARGIN = 0.2
"""Seconds kept before and after speech: soft beginnings and endings of words."""
_SHORTEST_SPEECH = 0.1
"""Seconds; less, on its own, is a click and no word."""
_ROW = 500 * FRAME
"""Samples that one row of a batch gives probabilities for: 16 s."""
_LEAD = 64 * FRAME
"""Samples before them that the row begins with, since the model goes by what it heard before."""
_ROWS = 16
"""Rows at once: more than twice as fast as one after the other, with 4 minutes of audio in memory."""
_ONE_AT_A_TIME = threading.Lock()
"""The model keeps a state while it listens."""


def measure_speech(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, int]:
    """How likely somebody speaks, over time; takes 0.003 of the recording's length on a CPU, in bounded memory.

    Args:
        blocks: float32 (samples,) each, 16 kHz mono, with quiet stretches lifted: at -60 dBFS the model hears none.
            Their sizes make no difference.

    Returns:
        float32 (frames,): the probability of speech in every `FRAME` samples; and the number of samples.
    """
    import numpy as np
    import torch

    model, total = _load_model(), 0
    before, found = np.zeros(_LEAD, dtype=np.float32), [np.zeros(0, dtype=np.float32)]
    for group in regroup(blocks, _ROWS * _ROW):
        total += len(group)
        row = min(_ROW, -(-len(group) // FRAME) * FRAME)
        padded = np.concatenate((before, group, np.zeros(-len(group) % row, dtype=np.float32)))
        rows = np.lib.stride_tricks.sliding_window_view(padded, _LEAD + row)[::row]
        # silero-vad wants one thread: more wait for one another 31 times a second of audio.
        with _ONE_AT_A_TIME, one_torch_thread():
            heard = model.audio_forward(torch.tensor(rows), SAMPLE_RATE)
        found.append(heard[:, _LEAD // FRAME :].flatten()[: -(-len(group) // FRAME)].numpy())
        before = group[-_LEAD:]
    return np.concatenate(found), total


def find_spans(
    probabilities: np.ndarray, samples: int, *, pause: float, longest: float
) -> list[tuple[int, int]]:
    """The parts of a recording in which somebody speaks, none longer than the model's window.

    Args:
        probabilities: as `measure_speech` returns them.
        samples: length of the recording.
        pause: seconds without speech that part two of them.
        longest: seconds that one may last; longer ones are cut at their longest pause.

    Returns:
        First sample of each and the one after its last, in order, without overlap; none where nobody speaks.
    """
    from silero_vad import get_speech_timestamps_from_probs

    found = get_speech_timestamps_from_probs(
        probabilities.tolist(),
        max_speech_duration_s=longest,
        min_silence_duration_ms=round(1000 * pause),
        min_speech_duration_ms=round(1000 * _SHORTEST_SPEECH),
        speech_pad_ms=round(1000 * MARGIN),
        audio_length_samples=samples,
    )
    return [(int(span["start"]), int(span["end"])) for span in found]


@functools.cache
def _load_model() -> Any:
    """silero-vad's model, which comes with its package; 0.1 s."""
    with one_torch_thread():  # silero-vad 6.2 leaves the whole process one when it is imported
        from silero_vad import load_silero_vad
    return load_silero_vad()
