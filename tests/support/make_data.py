"""Small data sets and models for tests, written to a folder, and what is looked at once they are read."""

import csv
import dataclasses
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.clips import ClipTable, load_clips
from trainer.data.prepared import PreparedData
from trainer.data.sources import DEMO_DATA
from trainer.errors import DataError
from trainer.model.pretrained import DEMO_MODEL

RATE = 16_000


def tone(seconds: float = 0.5, *, rate: int = RATE, pitch: float = 220.0, channels: int = 1) -> np.ndarray:
    """float32 (samples,) or (samples, channels): a note with overtones and a little noise."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(round(pitch)).standard_normal(len(time))
    wave = 0.3 * np.sin(2 * np.pi * pitch * time) + 0.1 * np.sin(6 * np.pi * pitch * time) + 0.01 * noise
    mono = wave.astype(np.float32)
    return mono if channels == 1 else np.stack([mono] * channels, axis=1)


@dataclasses.dataclass(frozen=True)
class Example:
    """A row of the data set that `examples` describes."""

    file: str
    text: str
    split: str
    language: str


def examples(count: int = 12) -> list[Example]:
    """Half train, a quarter validation, a quarter test; texts that careless readers would change."""
    texts = ["NA", 'He said "no", then left', "1.0", "null", "two\u00a0words"]
    texts += ["Ünï, cödé!", '"Quoted," he said', "nan"]
    rows = []
    for number in range(count):
        text = texts[number] if number < len(texts) else f"sentence number {number}"
        split = ("train", "train", "validation", "test")[number % 4]
        rows.append(Example(f"clip_{number:02}.flac", text, split, ("en", "de")[number % 2]))
    return rows


def write_clips(folder: Path, rows: list[Example]) -> None:
    """One FLAC file a row, each with a pitch of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(rows):
        soundfile.write(folder / row.file, tone(0.3 + 0.02 * number, pitch=200 + 10 * number), RATE)


def records(rows: list[Example], *, clips: str = "clips/") -> list[dict[str, str]]:
    """The rows with usual column names, and the audio as a path below the manifest."""
    return [
        {"audio": clips + row.file, "text": row.text, "split": row.split, "language": row.language}
        for row in rows
    ]


def write_manifest(path: Path, rows: list[dict[str, Any]]) -> Path:
    """CSV, TSV, JSONL or Parquet, by the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def write_common_voice(folder: Path, rows: list[Example], language: str = "en") -> Path:
    """A release folder; its TSV files quote nothing."""
    write_clips(folder / language / "clips", rows)
    columns = ["client_id", "path", "sentence", "up_votes", "locale"]
    names = {"train": "train", "validation": "dev", "test": "test"}
    for split, name in names.items():
        lines = ["\t".join(columns)]
        lines += ["\t".join(("x", row.file, row.text, "2", language)) for row in rows if row.split == split]
        (folder / language / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def embedded(rows: list[Example], clips: Path, **more: Any) -> list[dict[str, Any]]:
    """The rows with the audio's content inside, as Hugging Face lays it out in Parquet."""
    return [
        {"audio": {"bytes": (clips / row.file).read_bytes(), "path": row.file}, "text": row.text} | more
        for row in rows
    ]


def write_hub_parquet(folder: Path, rows: list[Example], clips: Path) -> Path:
    """`<split>.parquet` with audio inside, as the demo and hub data sets have it."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        write_manifest(folder / f"{split}.parquet", embedded([r for r in rows if r.split == split], clips))
    return folder


def write_processor(folder: Path, *, window: int = 2) -> Path:
    """A Whisper folder with processor and `config.json`: a vocabulary of bytes, a window of 2 seconds."""
    from tokenizers import pre_tokenizers
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    end = "<|endoftext|>"
    vocabulary = {char: code for code, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = WhisperTokenizer(vocab=vocabulary | {end: len(vocabulary)}, merges=[])
    special = ["<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES)]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": [*special, "<|notimestamps|>"]})
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=window)
    WhisperProcessor(feature_extractor=extractor, tokenizer=tokenizer).save_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids([end, "<|startoftranscript|>"])
    WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=80,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=window * 50,
        max_target_positions=64,
        decoder_start_token_id=ids[1],
        bos_token_id=ids[0],
        eos_token_id=ids[0],
        pad_token_id=ids[0],
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ).save_pretrained(folder)
    return folder


def demo_copy(folder: Path, file: str, **settings: Any) -> Path:
    """The demo's model with other settings in this file of it."""
    shutil.copytree(DEMO_MODEL, folder)
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | settings))
    return folder


def make_small_whisper(folder: Path) -> Path:
    """A random model as wide as tiny, with the demo's tokenizer: its usual rates depend on its WER."""
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    from trainer.model.pretrained import load_model_config
    from trainer.model.processor import load_processor

    values = load_model_config(TrainConfig().model).to_dict()
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig.from_dict(values | {"d_model": 384}))
    model.generation_config = GenerationConfig.from_pretrained(DEMO_MODEL)
    model.save_pretrained(folder)
    load_processor(TrainConfig()).save_pretrained(folder)
    return folder


ROWS = examples(12)
FILES = [f"clips/{row.file}" for row in ROWS]
TEXTS = [f"text {number}" for number in range(12)]
ALL_LANGUAGES = "language=en,language=de"


def load(data: Path | str, **settings: object) -> ClipTable:
    return load_clips(TrainConfig.from_dict({"data": str(data), **settings}))


def refused(words: str, data: Path | str, error: type[Exception] = DataError, **settings: object) -> None:
    """Loading it must fail with one line that has these words, a regular expression."""
    with pytest.raises(error, match=words) as caught:
        load(data, **settings)
    assert "\n" not in str(caught.value)


def content(table: ClipTable) -> dict[str, list[tuple[str, str, bytes]]]:
    """What a table holds: name of the file, text and decoded audio of each clip of each split."""
    return {
        role: [(Path(clip.name).name, clip.text, read_audio(clip.source()).tobytes()) for clip in clips]
        for role, clips in table.splits.items()
    }


def expected(folder: Path, rows: list[Example] = ROWS) -> dict[str, list[tuple[str, str, bytes]]]:
    return {
        split: [
            (row.file, row.text, read_audio(folder / "clips" / row.file).tobytes())
            for row in rows
            if row.split == split
        ]
        for split in ("train", "validation", "test")
    }


def sizes(table: ClipTable | PreparedData) -> dict[str, int]:
    return {role: len(clips) for role, clips in table.splits.items()}


def rows_with(**columns: list[str]) -> list[dict[str, str]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def caches(config: TrainConfig) -> list[str]:
    """Finished and unfinished folders in the cache; not the locks, which stay."""
    return sorted(path.name for path in Path(config.cache_dir).glob("*") if path.is_dir())


def snapshot(data: PreparedData) -> dict[str, list[object]]:
    """All that training takes from the data."""
    return {
        role: [
            (split.name(i), split.text(i), split.labels(i), split.fill(i), split.features(i).tobytes())
            for i in range(len(split))
        ]
        for role, split in data.splits.items()
    }


def pitch_of(audio: np.ndarray) -> float:
    """The strongest frequency in Hz, of 16 kHz audio."""
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio)), 8 * len(audio)))
    return float(np.argmax(spectrum)) * RATE / (8 * len(audio))


def encode(
    audio: np.ndarray,
    coding: str | None,
    container: str,
    *,
    rate: int = RATE,
    picture: bool = False,
    late: float = 0.0,
) -> bytes:
    """(samples,) or (channels, samples) as a file of phones, browsers and cameras: by FFmpeg, with its names.

    Without a `coding` there is no sound, with `picture` a film, whose sound begins so many seconds `late`.
    """
    import av
    import soxr

    channels = np.ascontiguousarray(np.atleast_2d(audio))
    if rate != RATE:
        channels = np.ascontiguousarray(soxr.resample(channels.T, RATE, rate).T)
    layout = "mono" if len(channels) == 1 else "stereo"
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        film = file.add_stream("mpeg4", rate=25, options={}) if picture else None
        if film is not None:
            film.width = film.height = 64
            film.pix_fmt = "yuv420p"
        sound = file.add_stream(coding, rate=rate, layout=layout) if coding else None
        if sound is not None and coding != "libopencore_amrnb":
            sound.bit_rate = 64_000
        if film is not None:
            for number in range(int(len(channels[0]) / rate * 25) + 30):
                image = av.VideoFrame.from_ndarray(
                    np.full((64, 64, 3), number % 255, np.uint8), format="rgb24"
                )
                image.pts = number
                file.mux(film.encode(image))
            file.mux(film.encode(None))
        if sound is not None:
            codec = sound.codec_context
            frame = av.AudioFrame.from_ndarray(channels, format="fltp", layout=layout)
            frame.sample_rate = rate
            pieces = av.AudioResampler(
                format=codec.format, layout=layout, rate=rate, frame_size=codec.frame_size or 0
            )
            place = round(late * rate)
            for piece in [*pieces.resample(frame), *pieces.resample(None)]:
                piece.pts, place = place, place + piece.samples
                file.mux(sound.encode(piece))
            file.mux(sound.encode(None))
    return buffer.getvalue()


def lag(audio: np.ndarray, expected: np.ndarray) -> tuple[int, float]:
    """Samples by which one comes later than the other, where they are most alike, and their correlation there."""
    size = 1 << (len(audio) + len(expected)).bit_length()
    found = np.fft.irfft(np.fft.rfft(audio, size) * np.conj(np.fft.rfft(expected, size)), size)
    place = int(np.argmax(found))
    like = float(found[place] / np.sqrt((audio**2).sum() * (expected**2).sum()))
    return (place - size if place > size // 2 else place), like


CLIPS = {"train": 40, "validation": 8, "test": 8}


def demo_rows(split: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a split of the demo data, audio inside."""
    import pyarrow.parquet as pq

    return pq.read_table(DEMO_DATA / f"{split}.parquet").slice(0, count).to_pylist()


def write_shards(folder: Path, kind: str = "parquet", *, shards: int = 4, rows: Any = None) -> Path:
    """`<split>-<number>.<kind>`: the training rows dealt to some shards, those of other splits to one."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, mine in (rows or {split: demo_rows(split, count) for split, count in CLIPS.items()}).items():
        count = shards if split == "train" else 1
        for number in range(count):
            path = folder / f"{split}-{number:05}-of-{count:05}.{kind}"
            (_write_tar if kind == "tar" else write_manifest)(path, mine[number::count])
    return folder


def _write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    with tarfile.open(path, "w") as archive:
        for row in rows:
            name = Path(row["audio"]["path"])
            rest = {column: value for column, value in row.items() if column != "audio"}
            contents = {name.suffix: row["audio"]["bytes"], ".json": json.dumps(rest).encode()}
            for suffix, content in contents.items():
                member = tarfile.TarInfo(f"{name.stem}{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def streaming(small: TrainConfig, folder: Path, **more: Any) -> TrainConfig:
    """Settings for such shards."""
    settings = {"data": str(folder), "audio_window": 10.0, "max_samples": 32, "shuffle_buffer": 8} | more
    return small.replace(streaming=True, max_train_clips=None, **settings)
