"""Errors, alignment, intervals, comparisons, groups, signs: against jiwer and known truth; the clips trials measure."""

import random
from typing import Any

import jiwer
import numpy as np
import pytest
from rich.cells import cell_len
from training import evaluate, train

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.scoring.alignment import (
    ClipErrors,
    ErrorCounts,
    Piece,
    align,
    count_errors,
    frequent_errors,
    pairs,
)
from trainer.scoring.decoding import Transcripts
from trainer.scoring.hallucinations import find_signs
from trainer.scoring.intervals import compare, difference_interval, rate_interval
from trainer.scoring.language_rules import split_characters
from trainer.scoring.normalizers import Normalizer
from trainer.scoring.objectives import combine
from trainer.scoring.part import chosen_clips, enough_clips
from trainer.scoring.scores import Reference, Scores, by_seconds, count_rates, group_by, score
from tune.evaluation.tables import (
    aligned_lines,
    difference_between,
    errors_in,
    p_value,
    share_without_error,
    verdict,
)

WORDS = ["адзін", "two", "drei", "quatre", "पाँच", "l'homme", "七", "a", "b", "c"]
PLAIN = Normalizer("none", "words", "as it is", str.strip)


def aligned(said: str, heard: str) -> list[Piece]:
    [pieces] = align([said], [heard])
    return pieces


def random_pairs(number: int, seed: int) -> tuple[list[str], list[str]]:
    """References, and hypotheses made of them by dropping, changing and adding words and letters."""
    chance = random.Random(seed)
    references, hypotheses = [], []
    for _ in range(number):
        said = [chance.choice(WORDS) for _ in range(chance.randint(1, 15))]
        heard = []
        for word in said:
            kind = chance.random()
            if kind < 0.15:
                continue
            heard.append(chance.choice(WORDS) if kind < 0.3 else word[::-1] if kind < 0.35 else word)
            if chance.random() < 0.12:
                heard.append(chance.choice(WORDS))
        references.append(" ".join(said))
        hypotheses.append(" ".join(heard))
    return references, hypotheses


@pytest.mark.parametrize("level", ["words", "characters"])
def test_200_random_pairs_as_jiwer_counts_them(level: str) -> None:
    references, hypotheses = random_pairs(200, seed=1)
    assert any(not text for text in hypotheses)
    counts = count_errors(references, hypotheses, level)  # type: ignore[arg-type]
    theirs = (jiwer.process_words if level == "words" else jiwer.process_characters)(references, hypotheses)
    rate = theirs.wer if level == "words" else theirs.cer
    assert counts.percent == pytest.approx(100 * rate, abs=1e-12)
    assert counts.totals() == {
        "hits": theirs.hits,
        "substitutions": theirs.substitutions,
        "deletions": theirs.deletions,
        "insertions": theirs.insertions,
        "reference": theirs.hits + theirs.substitutions + theirs.deletions,
    }
    alone = jiwer.wer if level == "words" else jiwer.cer
    for row, (said, heard) in enumerate(zip(references, hypotheses, strict=True)):
        assert counts.errors[row] / counts.lengths[row] == pytest.approx(alone(said, heard))


def scored(
    references: list[str], hypotheses: list[str], baseline: list[str] | None = None, *, silence: bool = False
) -> Scores:
    def transcripts(texts: list[str]) -> Transcripts:
        return Transcripts(texts, 1.0, 10.0, "nothing", "fp32", 16)

    names = [f"{row}.wav" for row in range(len(references))]
    seconds = [float(row % 7) for row in range(len(references))]
    reference = Reference(names, seconds, references, [PLAIN] * len(references), {}, silence)
    other = ("other", transcripts(baseline)) if baseline else None
    return score(reference, ("mine", transcripts(hypotheses)), other)


def test_words_for_an_empty_reference_are_insertions_where_nothing_is_said() -> None:
    counts = count_errors(["", "a b"], ["x y z", "a"])
    assert counts.percent == 200.0
    assert (counts.errors.tolist(), counts.lengths.tolist()) == ([3, 1], [0, 2])
    for nothing in ([], [""], ["  ", ""]):
        with pytest.raises(ValueError, match="nothing to measure"):
            _ = count_errors(nothing, ["x"] * len(nothing)).percent
    said, heard = ["", *["a b c"] * 9], ["x y z", *["a b c"] * 8, "a b"]
    known, unknown = (scored(said, heard, silence=silence) for silence in (True, False))
    for rate, expected in {"wer": (4 / 27, 1 / 27), "cer": (7 / 45, 2 / 45)}.items():
        found = [each.model.rates[rate] for each in (known, unknown)]
        assert [each.percent for each in found] == pytest.approx([100 * share for share in expected])
        low, high = found[0].interval or (0.0, 0.0)
        assert low < found[0].percent < high
    assert known.model.rates["wer_orthographic"] == known.model.rates["wer"]
    assert [each.model.decides.worst_first() for each in (known, unknown)] == [[0, 9], [9]]
    assert errors_in(known, 0) == "3 errors in 0 words"
    assert known.model.signs[0].kind == unknown.model.signs[0].kind == "empty reference"
    better = scored(said, ["", *heard[1:]], heard, silence=True).comparisons["wer"]
    assert (better.utterances, better.better) == (10, 1)
    assert better.difference == pytest.approx(-300 / 27)


def test_shares_and_p_values_hide_no_difference() -> None:
    most = scored(["a b"] * 300, [*["a b"] * 299, "a c"])
    assert share_without_error(most.model) == "99 %"
    every = scored([*["a b"] * 5, *[""] * 5], [*["a b"] * 5, *[""] * 5], silence=True)
    assert share_without_error(every.model) == "100 %"
    assert [p_value(p) for p in (0.0004, 0.0131, 0.0496, 0.0504)] == ["< 0.001", "0.013", "0.049", "0.050"]


def test_normalised_and_orthographic_rates_leave_out_the_same_clips() -> None:
    lower = Normalizer(
        "basic", "words", "", lambda text: "" if text == "Hm." else text.lower().replace(",", "")
    )
    counts = count_rates(["Hello, world", "Hm."], ["hello world", "Um."], [lower, lower]).counts
    assert {rate: found.percent for rate, found in counts.items() if rate.startswith("wer")} == {
        "wer": 0.0,
        "wer_orthographic": 50.0,
    }
    assert counts["wer_orthographic"].lengths.tolist() == [2, 0]


def test_each_text_is_counted_in_its_own_unit() -> None:
    """Of characters the WER is the CER, and spaces between them are none of the text."""
    characters = Normalizer("none", "characters", "", split_characters)
    counts = count_rates(["你们好。", "ab cd"], ["你好!", "ab ce"], [characters, PLAIN]).counts
    found = {rate: (each.errors.tolist(), each.lengths.tolist()) for rate, each in counts.items()}
    assert found["wer"] == found["wer_orthographic"] == ([2, 1], [4, 2])
    assert found["cer"] == found["cer_orthographic"] == ([2, 1], [4, 5])


def test_the_alignment_puts_words_side_by_side() -> None:
    found = pairs(aligned("the cat sat on a mat", "a cat sat a mat too"))
    kinds = "substitute the a|equal cat cat|equal sat sat|delete on |equal a a|equal mat mat|insert  too"
    assert [" ".join(pair) for pair in found] == kinds.split("|")
    assert list(pairs(aligned("", "a b"))) == [("insert", "", "a"), ("insert", "", "b")]
    assert list(pairs(aligned("a", ""))) == [("delete", "a", "")]
    assert aligned("", "") == []


def test_an_alignment_on_the_screen_fits_its_width() -> None:
    """Characters that are two cells wide count as that."""
    pieces = aligned("ten play 明日 tomorrow close today again", "green play 明日 now yellow close again")
    lines = [line.plain for line in aligned_lines(pieces, 40)]
    assert len(lines) == 4 and all(cell_len(line) <= 40 for line in lines)
    said, heard = (" ".join(line[9:] for line in lines[at::2]).replace("·", "").split() for at in (0, 1))
    assert said == ["ten", "play", "明日", "tomorrow", "close", "today", "again"]
    assert heard == ["green", "play", "明日", "now", "yellow", "close", "again"]


def test_worst_first_and_frequent_errors() -> None:
    references = ["a b c d", "a", "a b", "x"]
    hypotheses = ["a b q q", "b c d", "a b", "q q q"]
    counts = count_errors(references, hypotheses)
    assert counts.worst_first() == [1, 3, 0]
    found = frequent_errors(align(references, hypotheses))
    assert found == [("insert", "", "q", 2)]


def made_up(generator: np.random.Generator, n: int, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """Errors and lengths of utterances whose difficulty varies: their true rate is `mean`."""
    lengths = generator.poisson(9, n) + 1
    chance = generator.beta(2 * mean / (1 - mean), 2.0, n)
    return generator.binomial(lengths, chance), lengths


@pytest.mark.parametrize(("n", "mean"), [(5, 0.03), (200, 0.9)])
def test_the_interval_holds_the_true_rate_as_often_as_it_says(n: int, mean: float) -> None:
    generator = np.random.default_rng(5)
    found = [rate_interval(*made_up(generator, n, mean)) for _ in range(1000)]
    assert np.mean([low <= 100 * mean <= high for low, high in filter(None, found)]) >= 0.90


@pytest.mark.parametrize("n", [5, 200])
def test_the_interval_of_a_difference_holds_the_true_one(n: int) -> None:
    generator = np.random.default_rng(6)
    found = []
    for _ in range(1000):
        lengths = generator.poisson(9, n) + 1
        chance = generator.beta(0.5, 2.0, n)
        # The second makes half as many errors: 10 points less.
        differences = generator.binomial(lengths, chance) - generator.binomial(lengths, chance / 2)
        found.append(difference_interval(differences, lengths))
    held = np.mean([low <= 10.0 <= high for low, high in filter(None, found)])
    assert 0.90 <= held <= 0.99


def of_sources(
    generator: np.random.Generator, objective: str, *sizes: int, mean: float = 0.1
) -> tuple[ErrorCounts, ClipErrors]:
    """Clips of sources with so many and one true rate; what they count by the objective."""
    errors, lengths = made_up(generator, sum(sizes), mean)
    counts = ErrorCounts(np.stack([lengths - errors, errors, 0 * errors, 0 * errors]))
    names = [str(source) for source, size in enumerate(sizes) for _ in range(size)]
    return counts, combine({"wer": counts}, names, objective)[1]


@pytest.mark.parametrize(("small", "mean"), [(8, 0.1), (20, 0.03)])
def test_a_small_source_is_no_surer_for_being_scaled_up(small: int, mean: float) -> None:
    """Once 83 % of the intervals of the first held, and 90 % of those of the second."""
    generator = np.random.default_rng(4)
    found = [of_sources(generator, "sources", small, 400, mean=mean)[1] for _ in range(500)]
    intervals = [rate_interval(each.word_errors, each.words) for each in found]
    assert np.mean([low <= 100 * mean <= high for low, high in filter(None, intervals)]) >= 0.94


@pytest.mark.parametrize("clips", [50, 400])
def test_of_sources_that_are_as_bad_the_one_that_came_out_worst_is_not_taken_for_worse(clips: int) -> None:
    """Once 90 and 84 % of the intervals held."""
    generator = np.random.default_rng(4)
    found = [of_sources(generator, "worst_source", *[clips] * 8)[1] for _ in range(400)]
    intervals = [rate_interval(each.word_errors, each.words, each.worst_of) for each in found]
    assert 0.93 <= np.mean([low <= 10.0 <= high for low, high in filter(None, intervals)]) <= 0.99


def test_the_worst_of_several_sources_has_its_own_interval() -> None:
    generator = np.random.default_rng(4)
    counts, worst = of_sources(generator, "worst_source", 300, 20)
    own = [
        rate_interval(counts.of(rows).errors, counts.of(rows).lengths)
        for rows in (range(300), range(300, 320))
    ]
    assert rate_interval(worst.word_errors, worst.words) in [pytest.approx(each) for each in own]


@pytest.mark.parametrize(
    ("errors", "low", "high"),
    [
        ([0] * 6, 0.0, 18.9),
        ([9] * 6, 81.1, 100.0),  # mirrored
        ([3] * 6, 14.4, 52.2),
        ([9] * 5 + [27], 61.9, 250.6),  # one of them looped
        ([0] * 5 + [9], 0.0, 83.1),
    ],
)
def test_intervals_of_six_clips_of_nine_words(errors: list[int], low: float, high: float) -> None:
    assert rate_interval(np.array(errors), np.full(6, 9)) == pytest.approx((low, high), abs=0.05)


def test_of_fewer_than_five_clips_there_is_no_interval() -> None:
    assert rate_interval(np.zeros(4, int), np.full(4, 6)) is None
    assert difference_interval(np.ones(4, int), np.full(4, 6)) is None
    # a clip without words neither counts nor shifts anything
    errors, lengths = made_up(np.random.default_rng(7), 60, 0.2)
    assert rate_interval(np.append(errors, 0), np.append(lengths, 0)) == rate_interval(errors, lengths)


def test_no_difference_is_shown_between_equals() -> None:
    errors, lengths = made_up(np.random.default_rng(8), 100, 0.2)
    same = compare(errors, errors, lengths)
    assert (same.difference, same.interval, same.p_value, same.shown) == (0.0, None, 1.0, False)
    assert same.same_errors and difference_between(same) == "same errors"
    few = compare(errors[:3], errors[:3], lengths[:3])
    assert few.interval is None and difference_between(few) == "too few clips"
    assert not compare(errors, errors + (lengths > 0), lengths).same_errors


def test_a_clear_difference_has_a_small_p_and_an_interval_on_one_side() -> None:
    generator = np.random.default_rng(9)
    errors, lengths = made_up(generator, 200, 0.4)
    fewer = generator.binomial(errors, 0.5)
    found = compare(fewer, errors, lengths)
    assert found.shown and found.p_value < 0.001
    assert found.difference == pytest.approx(100 * (fewer.sum() - errors.sum()) / lengths.sum())
    low, high = found.interval or (0.0, 0.0)
    assert low < found.difference < high < 0
    assert found.better > 50 and found.worse == 0
    back = compare(errors, fewer, lengths)
    assert back.difference == -found.difference and back.better == 0


def test_the_verdict_in_words() -> None:
    references, hypotheses = random_pairs(80, seed=4)
    same = scored(references, hypotheses, hypotheses)
    told = "no difference shown: WER of mine minus that of other is 0.00 points, "
    assert verdict(same) == f"{told}the same errors on every clip, p = 1.000"
    better = scored(references, references, hypotheses)
    assert "below that of other (100 % fewer errors)" in verdict(better)
    assert "p < 0.001" in verdict(better)
    assert "points above that of other: 95 %" in verdict(scored(references, hypotheses, references))


def test_groups_of_a_column_and_of_lengths() -> None:
    assert list(group_by(["b", "a", "b", "", ""]).items()) == [("b", [0, 2]), ("a", [1]), ("(empty)", [3, 4])]
    assert by_seconds([1.0] * 50 + [2.0] * 3 + [3.0] * 10) == {
        "1 s": [*range(50)],
        "2 to 3 s": [*range(50, 63)],
    }
    ranges = by_seconds([number / 8 for number in range(100)])
    assert list(ranges) == ["0 to 3 s", "3.12 to 6.12 s", "6.25 to 9.25 s", "9.38 to 12.38 s"]


SIGNS = {
    "a clean text": ("one two three", "one two three", []),
    "two runs of three words": ("one two", "a b c one d e f two", []),
    "five words too many": ("one two", "one a b c d e two", ["insertions"]),
    "four words too many": ("one two", "one a b c d two", []),
    "a loop": ("so it goes", "so it goes so it goes so it goes", ["insertions"]),
    "a long loop": ("thanks", "thank you for watching " * 20, ["insertions", "compression"]),
    "a long loop that was sung": ("la la li " * 40, "la la li " * 40, []),
    "text for nothing": ("", "thank you", ["empty reference"]),
}


@pytest.mark.parametrize("case", list(SIGNS))
def test_signs_of_hallucination(case: str) -> None:
    said, heard, expected = SIGNS[case]
    found = find_signs([said], [heard], [aligned(said, heard)], "words")
    assert [sign.kind for sign in found] == expected


def test_signs_of_a_language_without_spaces_are_told_in_its_own_writing() -> None:
    said, heard = "你 好", "你 好 " + "谢 谢 观 看 " * 5
    sign, *_ = find_signs([said], [heard], [aligned(said, heard)], "characters")
    assert (sign.kind, sign.detail) == (
        "insertions",
        "20 characters: 谢谢观看谢谢观看谢谢观看谢谢观看谢谢观看",
    )


def rate(errors: ClipErrors, clips: list[int]) -> float:
    return ClipErrors(errors.word_errors[clips], errors.words[clips]).rate


def test_its_wer_is_about_half_a_point_off() -> None:
    errors = ClipErrors(*made_up(np.random.default_rng(0), 20_000, 0.08))
    count = enough_clips(errors)
    assert count is not None and 500 < count < 2000
    sources, every = [""] * 20_000, list(range(20_000))
    found = [rate(errors, chosen_clips(sources, count, seed)) for seed in range(200)]
    assert np.std(np.array(found) - rate(errors, every)) == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (ClipErrors(*made_up(np.random.default_rng(0), 20_000, 0.4)), 2000),
        (ClipErrors(np.zeros(3000), np.full(3000, 9)), 500),
        (ClipErrors(np.zeros(900), np.zeros(900)), None),
    ],
)
def test_it_has_500_to_2000_clips(errors: ClipErrors, expected: int | None) -> None:
    assert enough_clips(errors) == expected


def test_it_is_always_the_same_and_has_each_source() -> None:
    clips = ["easy"] * 900 + ["hard"] * 100
    chosen = chosen_clips(clips, 200, 7)
    assert chosen == chosen_clips(clips, 200, 7) != chosen_clips(clips, 200, 8)
    assert len(set(chosen)) == 200
    assert [clips[clip] for clip in chosen].count("hard") == 20
    assert chosen_clips(clips, 1000, 7) == list(range(1000))


def test_a_training_that_measures_a_part_is_the_same_training(small_config: TrainConfig) -> None:
    config = small_config.replace(max_eval_clips=8, evaluate_at=(8, 16), max_steps=2, dropout=0.1)
    data, rows, whole = prepare(config), list[dict[str, Any]](), list[dict[str, Any]]()
    train(config, lambda row, folder: rows.append(dict(row)) if folder else None, data=data, clips=[1, 4, 6])
    train(config, lambda row, folder: whole.append(dict(row)) if folder else None, data=data)
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole]
    assert [row["eval_loss"] for row in rows] != [row["eval_loss"] for row in whole]
    assert evaluate(config, data=data, clips=[1, 4, 6]).rates["clips"] == 3
