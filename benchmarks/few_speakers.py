"""A data set of few speakers: synthetic voices to train on, others to validate and others again to test on.

`robust.py` makes and searches it. Made as the demo's is (`tools/demo`, which needs espeak-ng), for the demo's model:
what is learned here has to hold for voices that were never heard. Clips are of more different lengths than the demo's.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tools" / "demo")]

import make_demo  # noqa: E402
import speech  # noqa: E402
from speech import LINE, Speaker  # noqa: E402

from trainer.files import whole_folder  # noqa: E402

SPEAKERS = {
    "train": (
        Speaker("moira", "en-gb-scotland", "f2", 170, 55, "pink", (26, 34)),
        Speaker("winston", "en-029", "m3", 180, 40, "white", (26, 34)),
        Speaker("nancy", "en-us-nyc", "klatt4", 165, 60, "pink", (26, 34)),
        Speaker("harold", "en-gb-x-gbclan", "m7", 175, 35, "babble", (22, 30)),
    ),
    "validation": (
        Speaker("alice", "en-gb-x-gbclan", "klatt2", 150, 70, "pink", (26, 34)),
        Speaker("tony", "en-us-nyc", "m5", 190, 45, "babble", (22, 30), LINE),
        Speaker("ewan", "en-gb-scotland", "klatt", 170, 30, "white", (26, 34)),
    ),
    "test": (
        Speaker("nigel", "en-gb-x-gbcwmd", "klatt3", 160, 35, "white", (26, 34)),
        Speaker("grace", "en-029", "f5", 185, 65, "pink", (26, 34)),
        Speaker("edith", "en-gb-x-rp", "f4", 150, 75, "babble", (22, 30), LINE),
    ),
}
"""By split; no voice is in two."""
_LONG_SHARE = 0.2
"""Of the sentences, so many have 6 to 8 words; the demo's have 5 at most."""
_SPARE = 1.05
"""So many times the clips are made: those that the model's window would cut are left out."""


def make(folder: Path, *, clips: int, seed: int, speakers: int, snr: tuple[float, float] | None) -> Path:
    """`train.parquet`, `validation.parquet` and `test.parquet` in `folder`, made only where they are not there yet.

    With the same version of espeak-ng they have the same samples, texts and order for the same arguments.

    Args:
        folder: what `data` of a training is to be.
        clips: of each split.
        seed: of sentences, noise and babble.
        speakers: of the training clips, the first ones.
        snr: lowest and highest dB of the speech over the noise in validation and test, instead of the speakers' own.
    """
    if folder.is_dir():
        return folder
    speech.check_espeak()
    rng = np.random.default_rng(seed)
    babble = speech.make_babble(rng)
    spoken = round(clips * _SPARE)
    texts = speech.different_sentences(rng, spoken * len(SPEAKERS), _sentence)
    with whole_folder(folder) as unfinished:
        for number, (split, people) in enumerate(SPEAKERS.items()):
            mine = texts[number * spoken : (number + 1) * spoken]
            chosen = people[:speakers] if split == "train" else people
            if snr is not None and split != "train":
                chosen = tuple(dataclasses.replace(speaker, snr=snr) for speaker in chosen)
            who = [chosen[index % len(chosen)] for index in range(spoken)]
            rows = make_demo.make_rows(f"{split} clips", seed + 1 + number, mine, who, babble)
            whole = [row for row in rows if row.seconds < speech.MAX_SECONDS]
            if len(whole) < clips:
                raise ValueError(
                    f"{split}: only {len(whole)} of {spoken} clips are short enough for the window"
                )
            make_demo.write_parquet(whole[:clips], unfinished / f"{split}.parquet")
    return folder


def _sentence(rng: np.random.Generator) -> str:
    if rng.random() < _LONG_SHARE:
        return " ".join(rng.choice(speech.WORDS, int(rng.integers(6, 9))))
    return speech.sentence(rng)
