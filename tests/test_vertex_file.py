"""The file that describes a cluster on Vertex AI: every mistake in it is told, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from vertex_lab import VERSIONS_OF_VERTEX

from tune.vertex_errors import VertexError
from tune.vertex_file import read_cluster_file

pytestmark = VERSIONS_OF_VERTEX


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: Whisper\n"
        "locaton: us-central1\n"
        "head: {machine_type: a2-highgpu-1g, accelerator_type: NVIDIA_TESLA_T4}\n"
        "workers:\n"
        "  - {machine_type: n1-standard-16, accelerator_type: NVIDIA_TESLA_A100, accelerator_count: 1}\n"
        "  - {machine_type: n1-standard-16, accelerator_type: nvidia-tesla-t4, replicas: 0}\n"
        "  - {machine_type: n1-standard-8, accelerator_type: NVIDIA_TESLA_T4, accelerator_count: 3}\n"
        "  - {machine_type: g2-standard-24, replicas: 2, autoscaling: {min: 4, max: 2}}\n"
        "  - {replicas: 2, accelerator_count: 1}\n"
        "service_account: nobody\n"
        "labels: {team: two words}\n"
    )
    with pytest.raises(VertexError) as caught:
        read_cluster_file(file)
    found = [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]
    expected = [
        "1: name=Whisper: must be lower-case letters",
        "2: locaton: unknown setting; did you mean location?",
        "3: head: a2-highgpu-1g comes with 1 NVIDIA_TESLA_A100",
        "5: workers: pool 1: NVIDIA_TESLA_A100 cannot be attached to n1-standard-16; it comes with a2-highgpu-1g",
        "6: workers: pool 2: accelerator_type=nvidia-tesla-t4: did you mean NVIDIA_TESLA_T4?",
        "6: workers: pool 2: replicas=0: must be a whole number from 1 to 1000",
        "7: workers: pool 3: 3 NVIDIA_TESLA_T4 cannot be attached to a machine; allowed are 1, 2, 4",
        "8: workers: pool 4: autoscaling: must be as {min: 1, max: 4}",
        "8: workers: pool 4: replicas: goes without autoscaling",
        "9: workers: pool 5: accelerator_count: needs accelerator_type",
        "9: workers: pool 5: machine_type: is missing",
        "10: service_account=nobody: must be an e-mail address",
        "11: labels: team=two words: letters, digits, - and _ only",
    ]
    assert len(found) == len(expected), found
    for line, begin in zip(found, expected, strict=True):
        assert line.startswith(begin)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty"),
        ("- a\n", "1: the top level must be a mapping"),
        ("name: x\nhead: {machine_type: n1-standard-8}\n", "1: workers: is missing"),
        (
            "name: x\nhead: &m {machine_type: n1-standard-8}\nworkers: {machine_type: n1-standard-8, disk_gb: 300}\n",
            "3: workers: n1-standard-8: the head's machine, so disk_gb and image must be the head's",
        ),
        (
            "name: x\nhead: {machine_type: n1-standard-8}\nworkers:\n"
            "- {machine_type: n1-standard-4}\n- {machine_type: n1-standard-4}\n",
            "5: workers: n1-standard-4: two pools of the same machines; make them one",
        ),
    ],
)
def test_mistakes_of_a_whole_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(VertexError) as caught:
        read_cluster_file(file)
    assert f"{file}:{message}" in str(caught.value)
