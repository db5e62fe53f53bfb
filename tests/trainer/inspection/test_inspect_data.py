"""What an inspection finds in sound data, and in data with planted faults."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from demo_clips import demo_clips
from make_data import tone, write_processor
from pages import Page
from planted_faults import Planter, load_rows

from trainer.config import TrainConfig
from trainer.data.audio import AudioSource, decode_each
from trainer.data.clip import Clip
from trainer.data.prepared import prepare
from trainer.errors import DataError
from trainer.inspection.characters import odd_characters
from trainer.inspection.entries import Entry
from trainer.inspection.inspection import Inspection, inspect_data, quick_look
from trainer.inspection.rates import misfitting
from trainer.inspection.sound import Sound, listen
from trainer.inspection.texts import detect_languages, markup
from tune.inspection.page import inspection_page
from tune.inspection.tables import to_dict

RATE = 16_000
NYNORSK = (
    "Eg veit ikkje kva dei har gjort med båten|Dei kjem heim når ho er ferdig med arbeidet sitt|"
    "Kvifor kan ikkje me gjere det same som dei|Ho fortalde at mor hennar ikkje var heime|"
    "Det er mykje me ikkje har snakka om enno"
)
CANTONESE = (
    "佢哋喺度等緊我哋返嚟食飯|你知唔知佢哋而家喺邊度呀|我唔係好明佢講咩嘢|"
    "呢啲嘢係咪你嘅呀唔該晒|佢話聽日會嚟搵我哋玩"
)


def found_by_kind(inspection: Inspection) -> dict[str, set[str]]:
    """Files by the kind of finding."""
    return {finding.kind: {one.name for one in finding.suspects} for finding in inspection.findings}


def test_every_planted_fault_is_found(tmp_path: Path) -> None:
    planter = Planter(tmp_path, load_rows(tmp_path, 300))
    inspection = inspect_data(TrainConfig(data=str(planter.plant_all())), with_model=False)
    found = found_by_kind(inspection)
    for kind, where in planter.faults.items():
        assert where <= found.get(kind, set()), f"{kind}: not found {where - found.get(kind, set())}"
    everything = set().union(*planter.faults.values(), planter.swapped)
    false = {kind: where - everything for kind, where in found.items() if where - everything}
    assert len(set().union(*false.values())) <= 2, f"false alarms: {false}"


def test_real_speech_raises_no_alarm(shared_data: Path) -> None:
    config = TrainConfig(data=str(shared_data / "speech_en_de"), language_column="language")
    inspection = inspect_data(config, with_model=False)
    assert inspection.findings == []
    assert inspection.languages == {"en": 200, "de": 200}


def test_the_demo_raises_no_alarm() -> None:
    inspection = inspect_data(TrainConfig())
    assert inspection.findings == []
    assert "8 of 8 speakers of test are in train too" in " ".join(inspection.notes)
    assert [facts.speakers for facts in inspection.splits.values()] == [8, 8, 8]


def speech_of(number: int) -> np.ndarray:
    """Something that rises and falls like speech, another for each number: float32 (samples,)."""
    syllables = [
        tone(0.12, pitch=120.0 + 13.0 * ((number * 7 + place * 11) % 17))
        * (0.3 + 0.7 * ((place + number) % 3) / 2)
        for place in range(4 + number % 5)
    ]
    return np.concatenate([part for syllable in syllables for part in (syllable, np.zeros(800, np.float32))])


def clips_with(folder: Path, columns: str, rows: list[str]) -> Path:
    """A data set with these rows."""
    (folder / "clips").mkdir(parents=True)
    lines = [f"file_name,{columns}"]
    for number, row in enumerate(rows):
        soundfile.write(folder / "clips" / f"{number:02}.wav", speech_of(number), 16_000)
        lines.append(f"clips/{number:02}.wav,{row}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def spoiled(folder: Path) -> Path:
    """Thirty clips, and two of each kind that cannot be used."""
    splits = ("train", "train", "train", "validation", "test")
    clips_with(folder, "text,split", [f"this is text number {at},{splits[at % 5]}" for at in range(30)])
    lines = []
    for number in range(2):
        soundfile.write(folder / "clips" / f"long{number}.wav", tone(2.5), 16_000)
        (folder / "clips" / f"broken{number}.wav").write_bytes(b"no audio")
        bad = "long{n}.wav,too long,train|broken{n}.wav,broken,validation|missing{n}.wav,missing,test|0{n}.wav,?!,train"
        lines += [f"clips/{row.format(n=number)}" for row in bad.split("|")]
        lines.append(f"clips/1{number}.wav,{'x' * 70} {number},train")
    with (folder / "metadata.csv").open("a") as file:
        file.write("\n".join(lines) + "\n")
    return folder


def test_what_would_be_left_out_and_tokens_are_those_of_a_search(tmp_path: Path) -> None:
    config = TrainConfig(
        model=str(write_processor(tmp_path / "model")),
        data=str(spoiled(tmp_path / "data")),
        cache_dir=str(tmp_path / "cache"),
        lowercase=True,
    )
    inspection, data = inspect_data(config), prepare(config.replace(max_dropped_share=0.5))
    assert len(inspection.drops) == 10
    assert set(inspection.drops) == set(data.drops)
    counted = {(one.split, one.name): one.tokens for one in inspection.entries if one.tokens is not None}
    assert counted == {
        (role, split.name(i)): len(split.labels(i))
        for role, split in data.splits.items()
        for i in range(len(split))
    }
    with pytest.raises(DataError) as error:
        prepare(config.replace(max_dropped_share=0.2))
    assert inspect_data(config.replace(max_dropped_share=0.2)).stops == str(error.value)


def test_a_sample_is_listened_to_and_all_texts_are_read(tmp_path: Path) -> None:
    folder = spoiled(tmp_path / "data")
    with (folder / "metadata.csv").open("a") as file:
        file.write("clips/05.wav,this is text number 8,train\nclips/06.wav,odd\u200b,train\n")
    inspection = inspect_data(TrainConfig(data=str(folder)), with_model=False, sample=10)
    heard = [entry for entry in inspection.entries if entry.sound is not None]
    assert inspection.measured == len(heard) == 10
    assert {entry.split for entry in heard} == {"train", "validation", "test"}
    assert "listened to 10 of 40 clips; all texts were read" in inspection.notes
    assert {"shared_text", "odd_characters"} <= found_by_kind(inspection).keys()
    assert inspection.stops is None


def test_data_of_which_nothing_can_be_heard(tmp_path: Path) -> None:
    lines = [f"missing{number}.wav,text number {number}" for number in range(3)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,text", *lines]) + "\n")
    inspection = inspect_data(TrainConfig(data=str(tmp_path)), with_model=False)
    assert [finding.kind for finding in inspection.findings] == ["dropped", "small_split"]
    assert inspection.findings[0].title.startswith("a search would stop: ")
    content = to_dict(inspection)
    assert content["dropped"]["by_reason"] == {"unreadable_audio": 3}
    assert "seconds" not in content["distributions"]
    assert "Nothing" not in Page(inspection_page(inspection)).text


def test_languages_of_one_data_set_are_judged_each_by_its_own(tmp_path: Path) -> None:
    german = "Er war der zweite Bischof der Diözese und wohnte in der alten Stadt"
    english = "He was the second bishop of the diocese and lived in the old town"
    texts = [(english, german)[number % 2] for number in range(60)]
    texts[10] = german
    rows = [f"{text} {number},{('en', 'de')[number % 2]}" for number, text in enumerate(texts)]
    data = str(clips_with(tmp_path, "text,language", rows))
    every = inspect_data(TrainConfig(data=data, language_column="language"), with_model=False)
    assert every.languages == {"en": 30, "de": 30}
    assert found_by_kind(every)["other_language"] == {"clips/10.wav"}


def test_a_search_judges_texts_of_each_language_by_its_own(tmp_path: Path) -> None:
    texts = ["He lived in the old town,en"] * 95 + ["Он жил в старом городе,ru"] * 5
    rows = [text.replace(",", f" {number},") for number, text in enumerate(texts)]
    config = TrainConfig(
        data=str(clips_with(tmp_path, "text,language", rows)),
        language_column="language",
        cache_dir=str(tmp_path / "features"),
    )
    found = quick_look(config, prepare(config).splits)
    assert "odd_characters" not in {finding.kind for finding in found}


def test_silence_that_is_to_be_learned_is_no_fault(tmp_path: Path) -> None:
    rows = [f"They walked {number} miles to town,speech" for number in range(40)]
    data = clips_with(tmp_path, "text,kind", rows)
    silent = [f"clips/{number}.wav" for number in range(0, 40, 4)]
    for name in silent:
        soundfile.write(data / name, np.zeros(4 * RATE), RATE)
    table = (data / "metadata.csv").read_text().splitlines()
    rest = [f"{line.split(',')[0]},,silence" if line.split(",")[0] in silent else line for line in table]
    (data / "metadata.csv").write_text("\n".join(rest))
    inspection = inspect_data(TrainConfig(data=str(data), empty_text="keep"), with_model=False)
    told = {name for names in found_by_kind(inspection).values() for name in names}
    assert not told & set(silent)


@pytest.mark.parametrize(("code", "text"), [("nn", NYNORSK), ("yue", CANTONESE)])
def test_languages_that_the_classifier_knows_by_their_own_code(code: str, text: str) -> None:
    texts = text.split("|")
    assert detect_languages(texts * 5, code) == (None, [])


def test_data_in_another_language_than_named_is_told(tmp_path: Path) -> None:
    rows = [f'"Это предложение номер {number}, и оно длинное"' for number in range(30)]
    inspection = inspect_data(TrainConfig(data=str(clips_with(tmp_path, "text", rows))), with_model=False)
    (finding,) = [one for one in inspection.findings if one.kind == "language_setting"]
    assert finding.title == "most texts look Russian, but are treated as English"


CODINGS = {
    "opus": (48_000, "OGG", "OPUS"),
    "telephone": (8000, "WAV", "ULAW"),
    "compact disc": (44_100, "WAV", "PCM_16"),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_clipping_shows_in_every_format(coding: str) -> None:
    rate, kind, subtype = CODINGS[coding]

    def share_clipped(audio: np.ndarray) -> float:
        target = io.BytesIO()
        soundfile.write(target, soxr.resample(audio, RATE, rate), rate, format=kind, subtype=subtype)
        [(source, found)] = decode_each([AudioSource(target.getvalue())], max_seconds=30)
        sound = listen(source, found)
        assert isinstance(sound, Sound)
        return sound.clipped

    for audio in [audio for audio, text in demo_clips("train") if len(text) > 15][:8]:
        loudest = audio / np.abs(audio).max()
        assert share_clipped(0.9 * loudest) < 0.001 < share_clipped(np.clip(5 * loudest, -1, 1))


ODD = {
    "zero width": ("some\u200bword here", "invisible character U+200B ZERO WIDTH SPACE"),
    "control": ("a bell\x07", "control character U+0007"),
    "replacement": ("na\ufffdve", "broken character \ufffd U+FFFD"),
    "emoji": ("so good \U0001f600", "emoji \U0001f600 U+1F600"),
    "cyrillic a": ("the c\u0430t", "Cyrillic and Latin letters in one word: 'c\u0430t'"),
    "cyrillic word": ("say \u0434\u0430 now", "Cyrillic letter \u0434 U+0434"),
    "mojibake": ("the cafÃ© is open", "letters of a wrong encoding: 'cafÃ©' for 'café'"),
    "mojibake of Cyrillic": ("say Ð´Ð° now", "'Ð´Ð°' for 'да'"),
    "mojibake in Cyrillic": ("РџСЂРёРІРµС‚ to all", "'РџСЂРёРІРµС‚' for 'Привет'"),
    "arabic": ("so lـong", "Arabic letter ـ U+0640"),
    "accent apart": ("cafe\u0301", "letter and accent apart, U+0301"),
}
PLAIN = [
    *("It was late, and she said nothing.", "Don't go - not yet; wait.", "Is it 5 o'clock? No!"),
    *("The cat sat on the mat.", "A “quoted” word", "Well-known, isn't it?"),
]


def found(text: str, others: list[str]) -> list[str]:
    """What is wrong with a text among others."""
    return [detail for position, detail in odd_characters([*others, text]) if position == len(others)]


@pytest.mark.parametrize("name", ODD)
def test_odd_characters_are_named(name: str) -> None:
    text, told = ODD[name]
    (odd,) = found(text, PLAIN * 30)
    assert told in odd


SOUND = {
    "english": PLAIN,
    "german": ["Schöne Grüße, Straße!", "Er sagte: „Ja, natürlich.“", "Ärger über Öl"],
    "french": ["Voilà « ça » s’appelle déjà", "à bientôt, Noël"],
    "russian": ["Привет, как дела? Ёлка", "«Да», — сказал он."],
    "belarusian": ["раз'яднаць сям'ю", "Ўсё добра, і ты"],
    "hindi": ["यह एक वाक्य है।", "क्षत्रिय क्\u200dष"],
    "persian": ["می\u200cخواهم بروم", "کتاب\u200cها"],
    "thai": ["สวัสดีครับ ผมชื่อสมชาย"],
    "japanese": ["今日はコーヒーを飲みました。", "Tシャツとラーメン"],
    "chinese": ["今天天气很好。", "我们去卡拉OK吧"],
    "hebrew": ["שלום, מה שלומך?", "צה״ל וז׳קט"],
    "ewe": ["Esi eme va kɔ ƒãa be, ŋutinya ƒomevi bubu"],  # letters that would be UTF-8 in Mac OS Roman
    "signs": ["it was 5 k\u2126 at 3 \u212a, 2 \u212b off", "la 1ª vez, el nº 2", "10 µm, mʰ"],
}


@pytest.mark.parametrize("language", SOUND)
def test_ordinary_texts_of_many_languages_are_sound(language: str) -> None:
    assert list(odd_characters(SOUND[language] * 30)) == []


def test_a_latin_letter_that_stands_for_a_cyrillic_one() -> None:
    texts = ["і я пайшоў дадому", "мая сям'я і мы"] * 40
    (odd,) = found("ты i я", texts)  # the Belarusian word for `and`, in the letter of another script
    assert "'i' is i U+0069 LATIN SMALL LETTER I" in odd
    assert found("у мяне ёсць Google", texts * 10) == [], "Latin names are common everywhere"


def test_markup() -> None:
    marked = (
        "<unk> hello|he said [laughs] no|salt &amp; pepper|see https://example.org now|a \\n b|{noise} well"
    )
    found = ["<unk>", "[laughs]", "&amp;", "https://example.org", "\\n", "{noise}"]
    assert [markup(text) for text in marked.split("|")] == found
    assert [markup(text) for text in ("3 < 5 and 7 > 6", "(perhaps) so", "Q & A", "well: what now")] == [
        None
    ] * 4


def test_few_clips_are_judged_by_what_anybody_can_speak() -> None:
    clips = [
        (Entry("train", Clip(str(number), "a" * letters), "en"), seconds)
        for number, (seconds, letters) in enumerate([(1.0, 15), (1.0, 90), (10.0, 3)])
    ]
    rate, odd = misfitting(clips)
    assert (rate, [entry.name for entry, _ in odd]) == (None, ["1", "2"])
