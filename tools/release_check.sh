#!/bin/bash
# The release gate: the built wheel in a clean environment outside the checkout, a real Whisper, real speech.
#
#   tools/release_check.sh MODEL DATA LANGUAGE [OUT]
#
# MODEL: folder of whisper-base. DATA: a table with the columns audio, text and split, as benchmarks/real.py makes one.
# A search of four trials, its report, export, transcription and evaluation; then the export in transformers 4.57.6
# and in faster-whisper at its defaults, with a minute of test clips joined. Half an hour on two cores.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
model=$(realpath "$1") data=$(realpath "$2") language=$3
out=$(realpath "${4:-$(mktemp -d)}")
python=${PYTHON:-python3.11}
step() { printf '\n== %s (%s)\n' "$*" "$(date +%T)"; }

step "build the wheel"
mkdir -p "$out" && cd "$out"
if [ -n "$(ls -A)" ]; then echo "$out: is not empty; give a new folder"; exit 2; fi
"$python" -m venv env
env/bin/pip install -q build
mkdir source && git -C "$checkout" archive HEAD | tar -x -C source
env/bin/python -m build --wheel -o dist source > build.log

step "install it in a clean environment"
env/bin/pip install -q -c "$checkout/constraints.txt" torch
env/bin/pip install -q -c "$checkout/constraints.txt" "$(ls dist/*.whl)[ctranslate2]"
export PATH="$out/env/bin:$PATH"
tune-whisper --version

step "search"
asked=(--space lr_batch --trials 4 --epochs 1 --max-concurrent 1 --experiment gate)
tune-whisper "${asked[@]}" --model "$model" --data "$data" --language "$language" --dry-run
tune-whisper "${asked[@]}" --model "$model" --data "$data" --language "$language"

step "report, export, evaluate, transcribe"
tune-whisper report gate
test -s experiments/gate/report/report.html
tune-whisper export gate --output model --format ctranslate2
cat > hear.py <<'PY'
"""Join a minute of test clips, or hear it in a runtime and print the WER."""
import sys

if sys.argv[1] == "join":
    import csv, numpy, soundfile
    from pathlib import Path
    rows = [row for row in csv.DictReader(open(sys.argv[2])) if row["split"] == "test"]
    pieces, texts, seconds = [], [], 0.0
    for row in rows:
        samples, rate = soundfile.read(Path(sys.argv[2]).parent / row["audio"])
        pieces += [samples, numpy.zeros(rate // 4)]
        texts.append(row["text"])
        seconds += len(samples) / rate + 0.25
        if seconds > 55:
            break
    soundfile.write("joined.wav", numpy.concatenate(pieces), rate)
    open("joined.txt", "w").write(" ".join(texts))
    sys.exit()
if sys.argv[1] == "transformers":
    import soundfile, transformers
    samples, rate = soundfile.read("joined.wav")  # of a file's name the pipeline needs ffmpeg
    pipe = transformers.pipeline("automatic-speech-recognition", "model")
    heard = pipe({"raw": samples, "sampling_rate": rate}, return_timestamps=True)["text"]
    name = f"transformers {transformers.__version__}"
elif sys.argv[1] == "faster-whisper":
    import faster_whisper
    segments, _ = faster_whisper.WhisperModel("model/ctranslate2", device="cpu").transcribe("joined.wav")
    heard, name = "".join(segment.text for segment in segments), f"faster-whisper {faster_whisper.__version__}"
else:
    heard, name = open(sys.argv[1]).read(), "tune-whisper transcribe"


def words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in text.lower()).split()


from difflib import SequenceMatcher

ours, theirs = words(open("joined.txt").read()), words(heard)
same = sum(block.size for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks())
print(f"{name}: {len(theirs)} words for {len(ours)}, {100 * same / len(ours):.1f} % of them right")
sys.exit(same < 0.5 * len(ours))
PY
python hear.py join "$data"
tune-whisper evaluate model --data "$data" --split test
tune-whisper transcribe model joined.wav > heard.txt
python hear.py heard.txt
python hear.py faster-whisper
python hear.py transformers

step "the export in transformers 4.57.6"
"$python" -m venv old
old/bin/pip install -q -c <(grep -E '^(torch|numpy|soundfile)==' "$checkout/constraints.txt") torch soundfile
old/bin/pip install -q transformers==4.57.6
old/bin/python hear.py transformers

step "passed; all is in $out"
