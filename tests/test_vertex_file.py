"""The file that describes a cluster on Vertex AI: every mistake in it is told, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from vertex_lab import VERSIONS_OF_VERTEX

from tune.remote.vertex import VertexError
from tune.remote.vertex_clusters import read_cluster_file

pytestmark = VERSIONS_OF_VERTEX


def problems_of(file: Path) -> list[str]:
    with pytest.raises(VertexError) as caught:
        read_cluster_file(file)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: Whisper\n"
        "locaton: us-central1\n"
        "head: {machine_type: n1-standard-8, accelerator_type: nvidia-tesla-t4}\n"
        "workers:\n"
        "  - {machine_type: n1-standard-16, boot_disk_size_gb: large, disk_gb: 200}\n"
        "  - {machine_type: g2-standard-24, autoscaling_spec: {min: 4, max_replica_count: 0}}\n"
        "  - {machine_type: n1-standard-16, node_count: 0}\n"
        "service_account: nobody\n"
        "labels: a\n"
    )
    assert problems_of(file) == [
        "1: name=Whisper: must be lower-case letters, digits, - and _, at most 63, a letter first",
        "2: locaton: unknown setting; did you mean location?",
        "3: head: accelerator_type=nvidia-tesla-t4: did you mean NVIDIA_TESLA_T4?",
        "5: workers: pool 1: boot_disk_size_gb=large: must be a whole number from 100 to 64000",
        "5: workers: pool 1: disk_gb: unknown setting; is boot_disk_size_gb now, as in Google's SDK",
        "6: workers: pool 2: autoscaling_spec: max_replica_count=0: must be a whole number from 1 to 1000",
        "6: workers: pool 2: autoscaling_spec: min: unknown setting; is min_replica_count now, as in Google's SDK",
        "7: workers: pool 3: node_count=0: must be a whole number from 1 to 1000",
        "8: service_account=nobody: must be an e-mail address",
        "9: labels=a: must be a mapping, as {team: speech}",
    ]


def test_pools_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: x\n"
        "head: {machine_type: n1-standard-8, node_count: 2}\n"
        "workers:\n"
        "  - {machine_type: g2-standard-24, node_count: 2, autoscaling_spec: {max_replica_count: 3}}\n"
        "  - {node_count: 2, accelerator_count: 1}\n"
        "  - {machine_type: g2-standard-48, autoscaling_spec: {min_replica_count: 4, max_replica_count: 2}}\n"
        "  - {machine_type: n1-standard-8, boot_disk_size_gb: 300}\n"
        "  - {machine_type: g2-standard-24}\n"
    )
    assert problems_of(file) == [
        "2: head: there is one head; node_count and autoscaling_spec belong to workers",
        "4: workers: g2-standard-24: node_count: goes without autoscaling_spec, which sets it; remove one",
        "5: workers: n1-standard-16: accelerator_count: needs accelerator_type",
        "5: workers: n1-standard-16: machine_type: is missing",
        "6: workers: g2-standard-48: autoscaling_spec: min_replica_count is above max_replica_count; swap them",
        "7: workers: n1-standard-8: the head's machine, so boot disk and custom_image must be the head's",
        "8: workers: g2-standard-24: two pools of the same machines; make them one",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty; docs/vertex_cluster.yaml is a whole one"),
        ("- a\n", "1: must be a mapping with some of name, head, workers, project"),
        ("name: x\nhead: {machine_type: n1-standard-8}\n", "1: workers: is missing"),
    ],
)
def test_mistakes_of_a_whole_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert problems_of(file)[0].startswith(message)
