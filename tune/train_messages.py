"""What the workers of a training and Ray Train's controller tell the driver."""

from __future__ import annotations

from collections.abc import Mapping

from tune.workers.worker_group import SECONDARY_ERRORS

EVALUATION = "evaluation"
EARLIER = "earlier evaluation"
PROGRESS = "progress"
FAILURE = "failure: "
"""Kinds of messages; a failure's text follows."""


def root_failure(failures: Mapping[int, Exception]) -> str:
    """The report of the worker that failed first: the others only say that they lost their connection to it."""
    reports = [_report(failures[rank]) for rank in sorted(failures)]
    first_hand = [text for text in reports if not any(sign in text for sign in SECONDARY_ERRORS)]
    return (first_hand or reports)[0]


def _report(failure: Exception) -> str:
    # Ray wraps the end of a worker's process, and says no more than that a health check failed.
    cause = getattr(failure, "health_check_failure", None)
    return f"{type(cause).__name__}: {cause}\n{failure}" if cause else str(failure).strip()
