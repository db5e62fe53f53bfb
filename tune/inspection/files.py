"""What an inspection leaves for programs and for later: JSON, and a list of suspicious clips."""

from __future__ import annotations

import csv
import datetime
import io
from collections import Counter
from typing import TYPE_CHECKING, Any

from trainer.inspection.inspection import Distribution, distributions

if TYPE_CHECKING:
    from trainer.inspection.inspection import Inspection

KIND = "tune-whisper inspection"
PAGE_FILE, JSON_FILE, LIST_FILE = "inspection.html", "inspection.json", "suspicious.csv"


def to_dict(inspection: Inspection) -> dict[str, Any]:
    """The content of `inspection.json`; plain values only, times in seconds, shares from 0 to 1."""
    limits, left_out = inspection.limits, inspection.left_out
    return {
        "kind": KIND,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "data": inspection.config.data,
        "model": limits.model,
        "languages": inspection.languages,
        "limits": {"seconds": limits.window, "tokens": limits.max_tokens},
        "clips": len(inspection.entries),
        "listened_to": inspection.measured,
        "listening_seconds": round(inspection.listening_seconds, 2),
        "warnings": len(inspection.warnings),
        "findings": [
            _attributes(finding, "kind level title advice count")
            | {"clips": [_attributes(one, "split file=name detail") for one in finding.suspects]}
            for finding in inspection.findings
        ],
        "notes": inspection.notes,
        "splits": {
            name: _attributes(facts, "clips seconds words different_texts=texts speakers")
            | {"seconds": round(facts.seconds, 1)}
            for name, facts in inspection.splits.items()
        },
        "dropped": {
            "by_reason": dict(Counter(drop.reason for drop in left_out.drops).most_common()),
            "search_stops": left_out.stops,
            "texts_that_may_be_too_long": left_out.maybe_too_long,
        },
        "formats": [
            {"rate": rate, "channels": channels, "format": kind, "clips": count}
            for (rate, channels, kind), count in inspection.formats().most_common()
        ],
        "usual_letters_per_second": {code: round(rate.rate, 2) for code, rate in inspection.rates.items()},
        "distributions": {one.key: _distribution_dict(one) for one in distributions(inspection.entries)},
        "alphabet": [
            {"character": one.char if one.char.isprintable() else None}
            | _attributes(one, "code name script count texts odd")
            for one in inspection.alphabet
        ],
    }


def _attributes(found: object, names: str) -> dict[str, Any]:
    """Some attributes of an object; `key=name` gives one another key."""
    pairs = (name.split("=") for name in names.split())
    return {pair[0]: getattr(found, pair[-1]) for pair in pairs}


def _distribution_dict(found: Distribution) -> dict[str, Any]:
    edges, counts = found.histogram()
    shares = {"least": 0.0, "p05": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}
    return {
        "unit": found.unit,
        "clips": len(found.values),
        **{name: round(found.quantile(share), 4) for name, share in shares.items()},
        "histogram": {"edges": edges, "counts": counts},
    }


def suspicious_list(inspection: Inspection) -> str:
    """The clips that warnings are about, as CSV."""
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(("file", "split", "why", "detail"))
    for finding in inspection.warnings:
        why = finding.kind.replace("_", " ")
        writer.writerows((one.name, one.split, why, one.detail) for one in finding.suspects)
    return lines.getvalue()
