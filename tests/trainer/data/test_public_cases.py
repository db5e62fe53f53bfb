"""Data as people have it, in the forms of public bug reports: read, or refused with a line that says what to do."""

import dataclasses
import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from demo_clips import srt
from make_data import RATE, load, refused, sizes, tone

from trainer.config import TrainConfig
from trainer.data.audio import AudioError, decode_each
from trainer.data.drops import count_by_reason
from trainer.data.prepared import prepare
from trainer.errors import DataError
from trainer.model.processor import load_processor

SHOWS = {"one.wav": 9.0, "two.wav": 9.0}
CLIPS = {"a.wav": 0.5, "b.wav": 0.6}
BOTH = {"one": 0.5, "two": 0.6}
PARTS = {"one": 2.5, "two": 2.0}


@dataclasses.dataclass(frozen=True)
class Case:
    """Files of a folder, and the seconds of sound that belong to each text of it."""

    files: Mapping[str, str | bytes]
    found: Mapping[str, float] = dataclasses.field(default_factory=lambda: BOTH)
    sounds: Mapping[str, float] = dataclasses.field(default_factory=lambda: CLIPS)
    data: str = ""
    """A path in the folder; by default the only file, or the folder where there are several."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def piece(file: str, text: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"audio": {"path": file, "start_time": start, "end_time": end}, "sentence": text} | more


SPONTANEOUS = "client_id\taudio_file\tduration_ms\tprompt\ttranscription\tlanguage\tsplit\n"
RELEASE = "client_id\tpath\tsentence\tlocale\n"
READ = {
    "02 quoted TSV of an old Common Voice": Case(
        {
            f"{split}.tsv": f'client_id\tpath\tsentence\n{file}\t{file}\t"""Now,"" said {file}."\n'
            for split, file in (("train", "a.wav"), ("dev", "b.wav"))
        },
        {'"Now," said a.wav.': 0.5, '"Now," said b.wav.': 0.6},
        {"clips/a.wav": 0.5, "clips/b.wav": 0.6},
        data=".",
    ),
    "01 Common Voice of spontaneous speech": Case(
        {
            "sps/ss-corpus-en.tsv": SPONTANEOUS
            + "x\ta.wav\t500\tWhy?\tone\tEnglish\ttrain\ny\tb.wav\t600\tWhy?\ttwo\tEnglish\tdev\n",
            "sps/ss-reported-en.tsv": "audio_file\treason\na.wav\tnoise\n",
        },
        sounds={"sps/audios/a.wav": 0.5, "sps/audios/b.wav": 0.6},
        data=".",
    ),
    "01 its table": Case(
        {"ss-corpus-en.tsv": SPONTANEOUS + "x\ta.wav\t\t\tone\t\ttrain\nx\tb.wav\t\t\ttwo\t\tdev\n"},
        sounds={"audios/a.wav": 0.5, "audios/b.wav": 0.6},
    ),
    "04 start and length in milliseconds": Case(
        {"x.csv": "audio,offset_ms,duration_ms,text\none.wav,3000,2500,one\ntwo.wav,6000,2000,two\n"},
        PARTS,
        SHOWS,
        settings={"segment_columns": "offset_ms,duration_ms"},
    ),
    "06 LJSpeech, separators of lines that are text": Case(
        {"metadata.csv": 'a|one\u2028more|1\nb|two, quoth"\x85|2\n'},
        {"one\u2028more": 0.5, 'two, quoth"': 0.6},
        {"wavs/a.wav": 0.5, "wavs/b.wav": 0.6},
        data=".",
    ),
    "08 cues without counters whose texts are numbers": Case(
        {
            "a.srt": "00:00:00,000 --> 00:00:00,200\nborn in\n1984\n\n00:00:00,200 --> 00:00:00,500\n7\n",
            "b.srt": "00:00:00,000 --> 00:00:00,600\ntwo\n",
        },
        {"born in 1984": 0.2, "7": 0.3, "two": 0.6},
        settings={"pack_seconds": 0},
    ),
    "27 names that are in both folders": Case(
        {"x.csv": "audio,text\nx/a.wav,one\ny/a.wav,two\nlost/c.wav,three\n"},
        {"one": 0.5, "two": 0.6, "three": 0.8},
        {"x/a.wav": 0.5, "y/a.wav": 0.6, "sounds/a.wav": 0.7, "sounds/c.wav": 0.8},
        settings={"audio_dir": "{folder}/sounds"},
    ),
    "03 Common Voice, only validated clips": Case(
        {
            **dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), RELEASE),
            "validated.tsv": RELEASE + "x\ta.wav\tone\ten\ny\tb.wav\ttwo\ten\n",
        },
        sounds={"clips/a.wav": 0.5, "clips/b.wav": 0.6},
    ),
    "03 named": Case(
        {
            "train.tsv": RELEASE + "x\tb.wav\ttwo\ten\n",
            "dev.tsv": RELEASE + "x\tc.wav\tthree\ten\n",
            "validated.tsv": RELEASE + "x\ta.wav\tone\ten\ny\tb.wav\ttwo\ten\nz\tc.wav\tagain\ten\n",
        },
        {"one": 0.5, "two": 0.6, "three": 0.7},
        {"clips/a.wav": 0.5, "clips/b.wav": 0.6, "clips/c.wav": 0.7},
        settings={"train_split": "validated"},
    ),
    "03b a table inside a release": Case(
        {"validated.tsv": RELEASE + "x\ta.wav\tone\ten\ny\tb.wav\ttwo\ten\n"},
        sounds={"clips/a.wav": 0.5, "clips/b.wav": 0.6},
    ),
    "04 NeMo": Case(
        {
            "manifest.json": lines(
                {"audio_filepath": "one.wav", "offset": 3.0, "duration": 2.5, "text": "one"},
                {"audio_filepath": "two.wav", "offset": 0, "duration": 2, "text": "two"},
            )
        },
        PARTS,
        SHOWS,
    ),
    "05 times inside the audio": Case(
        {"train.json": lines(piece("one.wav", "one", 3.0, 5.5), piece("two.wav", "two", 0, 2, duration=2))},
        PARTS,
        SHOWS,
    ),
    "1.3 rows that are joined in the language of each": Case(
        {
            "x.csv": "audio,start,end,text,locale\none.wav,0,1,你好,zh\none.wav,1,2,世界,zh\ntwo.wav,0,1,good,de\n"
            "two.wav,1,3,day,de\n"
        },
        {"你好世界": 2.0, "good day": 3.0},
        SHOWS,
        settings={"pack_seconds": 5, "language_column": "locale", "language": "en"},
    ),
    "06 the file of LJSpeech": Case(
        {"metadata.csv": "a|one|1\nb|two|2\n"}, sounds={"wavs/a.wav": 0.5, "wavs/b.wav": 0.6}
    ),
    "07 Kaldi": Case(
        {
            "data/train/wav.scp": "r1 wav/a.wav\n",
            "data/dev/wav.scp": "u2 wav/b.wav\n",
            "data/train/text": "u1 one more\n",
            "data/dev/text": "u2 two\n",
            "data/train/segments": "u1 r1 0.1 0.4\n",
            "data/train/utt2spk": "u1 me\n",
        },
        {"one more": 0.3, "two": 0.6},
        {"data/wav/a.wav": 0.5, "data/wav/b.wav": 0.6},
        data="data",
    ),
    "08 a text beside every recording": Case({"a.txt": "one\n", "b.txt": "two\n", "README.txt": "..."}),
    "09 backslashes": Case(
        {"x.csv": "\ufeffaudio;text\r\nclips\\A 1.wav;one\r\nclips\\b.wav;two\r\n"},
        sounds={"clips/A 1.wav": 0.5, "clips/b.wav": 0.6},
    ),
    "09 paths of another computer": Case(
        {"x.csv": "audio,text\nC:\\Users\\me\\a.wav,one\n/home/me/b.wav,two\n"},
        sounds={"clips/a.wav": 0.5, "clips/b.wav": 0.6},
        settings={"audio_dir": "{folder}/clips"},
    ),
    "10 composed names": Case(
        {"x.csv": "audio,text\ngröße.wav,one\nb.wav,two\n"},
        sounds={unicodedata.normalize("NFD", "größe.wav"): 0.5, "b.wav": 0.6},
    ),
    "11 tokens that are stripped": Case(
        {
            "x.csv": "audio,text\na.wav,<|0.00|> one<|1.00|><|1.00|>more<|2.00|>\nb.wav,<|en|>two<|endoftext|>\n"
        },
        {"one more": 0.5, "two": 0.6},
        settings={"strip_tokens": True},
    ),
    "14 Excel names the separator": Case(
        {"x.csv": "\ufeffsep=;\r\naudio;text\r\na.wav;one\r\nb.wav;two\r\n"}
    ),
    "14 Excel's Unicode": Case({"x.csv": "audio\ttext\r\na.wav\tone\r\nb.wav\ttwo\r\n".encode("utf-16")}),
    "11 tokens in the language of each row": Case(
        {
            "x.csv": "audio,text,locale\na.wav,<|0.00|>你好<|1.00|><|1.00|>世界<|2.00|>,zh\n"
            "b.wav,<|0.00|>one<|1.00|><|1.00|>more<|2.00|>,de\n"
        },
        {"你好世界": 0.5, "one more": 0.6},
        settings={"strip_tokens": True, "language_column": "locale"},
    ),
    "16 silence": Case(
        {"x.csv": "audio,text\na.wav,one\nb.wav,\n"}, {"one": 0.5, "": 0.6}, settings={"empty_text": "keep"}
    ),
    "18 rows under a key": Case(
        {
            "x.json": '{"version": 1,\n"data": [{"audio": "a.wav", "text": "one"}, {"audio": "b.wav", "text": "two"}]}'
        }
    ),
    "18 pandas": Case(
        {"x.json": '{"audio": {"0": "a.wav", "1": "b.wav"}, "text": {"0": "one", "1": "two"}}'}
    ),
    "23 a long field": Case({"x.csv": f"audio,text,words\na.wav,one,{'x' * 200_000}\nb.wav,two,\n"}),
    "1.2 a translation": Case(
        {"x.csv": "audio,sentence,translation\na.wav,eins,one\nb.wav,zwei,two\n"},
        settings={"task": "translate", "language": "de"},
    ),
    "1.2 subtitles of a translation": Case(
        {
            f"{name}.srt": f"1\n00:00:00,000 --> 00:00:00,400\n{text}\n"
            for name, text in {"a.de": "eins", "a.en": "one", "b.de": "zwei", "b.en": "two"}.items()
        },
        {"one": 0.4, "two": 0.4},
        settings={"task": "translate", "language": "de"},
    ),
    "1.2 English of Japanese speech is joined with spaces": Case(
        dict.fromkeys(("a.srt", "b.srt"), srt([(0, 0.2, "Well,\nI"), (0.2, 0.4, "know")])),
        {"Well, I know": 0.4},
        settings={"task": "translate", "language": "ja"},
    ),
    "1.3 Chinese lines and cues": Case(
        dict.fromkeys(("a.srt", "b.srt"), srt([(0, 0.2, "你好\n世界"), (0.2, 0.4, "再见")])),
        {"你好世界再见": 0.4},
        settings={"language": "zh"},
    ),
}


def write(case: Case, folder: Path) -> tuple[str, dict[str, Any]]:
    """What `data` is, and the settings."""
    for name, seconds in case.sounds.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, tone(seconds), RATE)
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    data = case.data or (next(iter(case.files)) if len(case.files) == 1 else ".")
    settings = {
        name: value.format(folder=folder) if isinstance(value, str) else value
        for name, value in case.settings.items()
    }
    return str(folder / data), {"validation_share": 0.5} | settings


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    data, settings = write(READ[name], tmp_path)
    table = load(data, **settings)
    clips = [clip for clips in table.splits.values() for clip in clips]
    found = {}
    for clip, (_, decoded) in zip(clips, decode_each(clip.source() for clip in clips), strict=True):
        assert not isinstance(decoded, AudioError), decoded
        found[clip.text] = round(len(decoded.samples) / RATE, 2)
    assert found == READ[name].found
    assert all(role == "train" or len(mine) for role, mine in table.splits.items())


TIMES = "audio,{},{},text\none.wav,{},{},one\ntwo.wav,{},{},two\n"
ELAN = '<?xml version="1.0"?><ANNOTATION_DOCUMENT/>'
REFUSED = {
    "11 tokens": (
        Case({"x.csv": "audio,text\na.wav,<|0.00|> one\nb.wav,two\n"}),
        r"1 of 2 texts hold tokens of Whisper.*a\.wav: '<\|0\.00\|> one'\); remove them, or set strip_tokens=true",
    ),
    "17 other names": (
        Case({"x.csv": TIMES.format("start_time", "end_time", 0, 2, 3, 5)}, sounds=SHOWS),
        r"columns start_time and end_time look like times .* segment_columns=start_time,end_time if they are",
    ),
    "07 an utterance without a segment": (
        Case({"wav.scp": "r a.wav\n", "text": "u1 one\nr two\n", "segments": "u1 r 0 0.2\n"}, data="."),
        r"segments: utterance r: must have a recording, a start and an end in seconds",
    ),
    "24 Audacity": (
        Case({"a.txt": "0.000000\t0.200000\tone\n0.2\t0.4\ttwo\n"}, data="."),
        r"a\.txt: is a label track of Audacity; export the labels there as subtitles \(a\.srt\)",
    ),
    "24 ELAN": (Case({"a.eaf": ELAN}, data="."), r"a\.eaf: is a file of ELAN; export it there as subtitles"),
    "07 a recording that is made by a command": (
        Case({"wav.scp": "u1 flac -cd a.flac |\n", "text": "u1 one\n"}),
        r"wav\.scp: recording u1 of utterance u1 is made by a command: write the sound to files",
    ),
    "18 numbers": (
        Case({"x.jsonl": lines({"audio": "a.wav", "text": 1}, {"audio": "b.wav", "text": None})}),
        r"no text column in .*x\.jsonl: text holds numbers, not text",
    ),
    "06 a table without a header": (
        Case({"x.csv": f"a.wav|{'long ' * 99}\nb.wav|two\n"}),
        r"no audio column in .*x\.csv, which has a\.wav, (long )+\S*\.\.\.; set audio_column",
    ),
    "14 ANSI": (Case({"x.csv": "audio,text\na.wav,größer\n".encode("cp1252")}), "is not UTF-8 text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    case, words = REFUSED[name]
    data, settings = write(case, tmp_path)
    with pytest.raises(DataError, match=words) as caught:
        load(data, **settings)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400 + len(data)


TWO = {"x.csv": "audio,text\nwav/a.wav,one\nwav/b.wav,two\n"}
MP3 = {"mp3/a.mp3": 0.5, "mp3/b.mp3": 0.6}
DROPPED = {
    "27 another suffix": (
        Case(TWO, sounds=MP3),
        r"wav/.\.wav: file not found, but mp3/.\.mp3 is there: correct the names in the table\)",
    ),
    "27 another suffix in the folder that is named": (
        Case(TWO, sounds=MP3, settings={"audio_dir": "{folder}/mp3"}),
        r"wav/.\.wav: file not found, but .\.mp3 is there: correct the names in the table\)",
    ),
    "27 another folder": (
        Case(TWO, sounds={"sounds/a.wav": 0.5, "sounds/b.wav": 0.6}),
        r"wav/.\.wav: file not found, but sounds/.\.wav is there; audio_dir=FOLDER says where files are",
    ),
    "27 no file could have such a name": (
        Case({"x.csv": f"audio,text\n{'a' * 300},one\nwav/b.wav,two\n"}, settings={"audio_dir": "{folder}"}),
        r"aaa\.\.\.: cannot be read: File name too long",
    ),
    "17 milliseconds": (
        Case({"x.csv": TIMES.format("start", "end", 3000, 5500, 0, 2500)}, sounds=SHOWS),
        r"lasts 2500\.00 s; times are seconds: are these milliseconds or samples\?",
    ),
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_cannot_be_decoded(name: str, tmp_path: Path, config: TrainConfig) -> None:
    case, words = DROPPED[name]
    data, settings = write(case, tmp_path / "here")
    with pytest.raises(DataError, match=words) as caught:
        prepare(config.replace(data=data, row_filter=None, **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("columns", ["splits", "partition", "split\tsplits"])
def test_22_a_column_of_splits(columns: str, tmp_path: Path) -> None:
    """One that is empty, too, beside one that is not."""
    marks = ["train"] * 4 + ["dev"] * 2 + ["test"] * 3
    empty = "\t" * columns.count("\t")
    rows = [f"{at}.mp3\ttext {at}\t{empty}{mark}" for at, mark in enumerate(marks)]
    (tmp_path / "x.tsv").write_text("\n".join([f"audio_file\ttranscription\t{columns}", *rows]))
    table = load(tmp_path / "x.tsv")
    assert sizes(table) == {"train": 4, "validation": 2, "test": 3}
    assert {clip.text for clip in table.splits["test"]} == {"text 6", "text 7", "text 8"}


@pytest.mark.parametrize(
    ("flat", "channels", "kind", "scale"),
    [
        (False, "first", pa.float32(), 1.0),
        (True, None, pa.float32(), 1.0),
        (True, "last", pa.float32(), 1.0),
        (True, None, pa.float32(), 2.0**15),
        (True, None, pa.int16(), 2.0**15),
        (True, "last", pa.int32(), 2.0**31),
    ],
)
def test_13_samples_in_the_table(
    tmp_path: Path, flat: bool, channels: str | None, kind: pa.DataType, scale: float
) -> None:
    """Of two channels, in either order, the mean is taken."""
    sounds = {"one": tone(0.5), "two": tone(0.6)}
    cells = [(sound.astype(float) * scale * 0.999).tolist() for sound in sounds.values()]
    if pa.types.is_integer(kind):
        cells = [list(map(int, cell)) for cell in cells]
    if channels is not None:
        both = [np.array([cell, np.zeros_like(cell)]) for cell in cells]
        cells = [(pair if channels == "first" else pair.T).tolist() for pair in both]
        kind = pa.list_(kind)
    if flat:
        columns = {"audio": pa.array(cells, pa.list_(kind)), "sampling_rate": [RATE] * 2}
    else:
        columns = {"audio": [{"array": cell, "path": "x.wav", "sampling_rate": RATE} for cell in cells]}
    pq.write_table(pa.table({**columns, "text": list(sounds)}), tmp_path / "x.parquet")
    table = load(tmp_path / "x.parquet", validation_share=0.5)
    clips = [clip for clips in table.splits.values() for clip in clips]
    assert len(clips) == 2
    for clip, (_, decoded) in zip(clips, decode_each(clip.source() for clip in clips), strict=True):
        assert not isinstance(decoded, AudioError)
        expected = 0.999 * sounds[clip.text] / (1 if channels is None else 2)
        assert len(decoded.samples) == len(expected) and abs(decoded.samples - expected).max() < 1e-4


def test_13_audio_in_the_table_is_not_cut(tmp_path: Path) -> None:
    cells = [{"bytes": b"", "path": name} for name in ("a.wav", "b.wav")]
    columns = {"audio": cells, "from": [0.0, 0.0], "to": [0.2, 0.2], "text": ["one", "two"]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    told = r"segment_columns='from,to': the audio lies inside .*x\.parquet"
    refused(told, tmp_path / "x.parquet", segment_columns="from,to")


def test_16_silence_is_taught_as_nothing(tmp_path: Path, config: TrainConfig) -> None:
    rows = "audio,text,split\na.wav,one,train\nb.wav,,train\nb.wav,...,train\na.wav,two,dev\n"
    data, _ = write(Case({"x.csv": rows}), tmp_path / "here")
    config = config.replace(data=data, row_filter=None, split_by=None, max_dropped_share=0.6)
    kept, dropped = (prepare(config.replace(empty_text=name)) for name in ("keep", "drop"))
    assert len(dropped.splits["train"]) == 1 and count_by_reason(dropped.drops) == {"empty_text": 2}
    assert len(kept.splits["train"]) == 2 and count_by_reason(kept.drops) == {"empty_text": 1}
    spoken, silent = (kept.splits["train"].labels(at) for at in range(2))
    assert silent == [*spoken[:4], spoken[-1]], "the prefix and the end"


def test_1_2_lower_case_is_that_of_the_written_language(tmp_path: Path, config: TrainConfig) -> None:
    case = Case({"x.csv": "audio,text,split\na.wav,I think,train\nb.wav,I do,dev\n"})
    data, _ = write(case, tmp_path / "here")
    config = config.replace(data=data, row_filter=None, language="tr", lowercase=True)
    tokens = prepare(config.replace(task="translate")).splits["train"].labels(0)
    assert load_processor(config).tokenizer.decode(tokens, skip_special_tokens=True).strip() == "i think"
