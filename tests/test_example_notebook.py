"""The example notebook, run as a reader would: few outputs, and a model in the end."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from search_process import ONE_CPU, QUICK, share_features

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "own_data.ipynb"
MOST_OUTPUTS = 14
SMALL = f"""
asked |= {{"trials": 2, "epochs": 2, "settings": {dict(word.split("=") for word in QUICK if word != "--set")}}}
"""


@pytest.mark.slow
@pytest.mark.occasional
def test_the_notebook_leads_from_a_table_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small part of the data; its dry run is left out, which others test."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is committed without outputs"
    notebook.cells = [cell for cell in notebook.cells if "dry_run" not in cell.source]
    cells = {tag: cell for cell in notebook.cells for tag in cell.metadata.get("tags", ())}
    cells["parameters"].source += SMALL
    for name, value in {**ONE_CPU, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    share_features(tmp_path)
    NotebookClient(notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}}).execute()

    outputs = cells["search"].outputs
    assert len(outputs) <= MOST_OUTPUTS
    texts = ["".join(out.get("data", {}).get("text/html", "")) for out in outputs]
    table, result = (text for text in texts if text)
    for text in (table, result):
        assert "<td>completed</td>" in text and "learning_rate" in text
    assert "2 trials" in result and "each trial sees up to" in table
    (report,) = cells["report"].outputs
    assert "&lt;!doctype html&gt;" in report.data["text/html"].lower()
    (said,) = cells["transcribe"].outputs
    assert said.text.strip()
    assert (tmp_path / "my-model" / "model.safetensors").is_file()
