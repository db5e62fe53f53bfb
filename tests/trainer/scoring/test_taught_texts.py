"""What the model is taught and what is counted are one text: whoever writes what was taught makes no error."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies

from trainer.config import TrainConfig
from trainer.data.text import has_words, prepare_target
from trainer.languages import CODES
from trainer.scoring.normalizers import make_normalizer
from trainer.scoring.scores import count_rates

SPACES = ["\u00a0", "\u202f", "\u2009", "\u3000", "\u2028", "\t", "\n", "  ", " \u00a0 "]


def rates(said: str, heard: str, language: str, normalizer: str = "auto") -> dict[str, float]:
    config = TrainConfig(language=language, normalizer=normalizer)
    counts = count_rates([said], [heard], [make_normalizer(config)]).counts
    return {rate: each.percent for rate, each in counts.items()}


@pytest.mark.parametrize("space", SPACES, ids=ascii)
@pytest.mark.parametrize("normalizer", ["auto", "whisper", "basic", "none"])
def test_no_space_before_punctuation_is_an_error(space: str, normalizer: str) -> None:
    said = f"Quoi{space}? 5{space}000{space}€{space}: oui{space}!"
    taught = prepare_target(said, lowercase=False, remove_punctuation=False)
    assert taught == "Quoi ? 5 000 € : oui !"
    # Either may have it: a model that was trained elsewhere writes the no-break space itself.
    assert set(rates(said, taught, "fr", normalizer).values()) == {0.0}
    assert set(rates(taught, said, "fr", normalizer).values()) == {0.0}


def test_a_space_between_two_words_still_counts() -> None:
    assert rates("bon\u00a0jour", "bonjour", "fr")["wer_orthographic"] == 200.0 / 2
    assert rates("bon\u00a0jour", "bonjour", "fr")["cer_orthographic"] == 100.0 / 8


@hypothesis.given(
    text=strategies.text(
        strategies.sampled_from(
            "aBéİıßΣςσ5٥५%٪‰€$₹-\u2212.,:;?!'’\"()كۀन्เำ你\u200b\u200d\u0301 \u00a0\u202f\u3000\n"
        )
        | strategies.characters(exclude_categories=("Cs",)),
        max_size=30,
    ),
    language=strategies.sampled_from(sorted(CODES)),
    normalizer=strategies.sampled_from(["auto", "basic", "none"]),
)
def test_whoever_writes_what_was_taught_makes_no_error(text: str, language: str, normalizer: str) -> None:
    hypothesis.assume(has_words(text))
    taught = prepare_target(text, lowercase=False, remove_punctuation=False, language=language)
    try:
        found = rates(text, taught, language, normalizer)
    except ValueError:  # only signs are left of it: it is in no rate
        return
    assert set(found.values()) == {0.0}
