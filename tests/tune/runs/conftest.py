"""What tests of the end of a search share."""

import pytest

from tune.runs import finish


@pytest.fixture
def _without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their figures take seconds; they are made from the same log as everything else."""
    monkeypatch.setattr(finish, "write_report", lambda *_: None)
