"""The two processes that others are forked from (see `forks.py`).

`python fork_server.py FOLDER FD FD`, with the sockets where commands and workers are asked for. It ends with who has
started it, and removes the folder.
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import sys
from pathlib import Path

HERE = sys.path[0]
sys.path.insert(1, str(Path(HERE).parents[1]))

from tune.cluster.fork_server import READ_BY_IMPORTS, Server, import_for_workers, run, run_and_end  # noqa: E402

del sys.path[1]

OF_COMMANDS = (
    *("tune.commands.search", "tune.runs.search", "tune.runs.finish", "tune.tracking.sync"),
    *("tune.report.writer", "tune.commands.export", "tune.commands.train", "tune.commands.inspect"),
    *("transformers.models.whisper.processing_whisper", "transformers.models.auto.configuration_auto"),
    *(
        "transformers.models.whisper.feature_extraction_whisper",
        "transformers.models.whisper.tokenization_whisper",
    ),
    *("tune.report.search_page", "tune.report.analysis", "plotly.graph_objects", "trainer.data.prepared"),
    *("ray.autoscaler.v2.utils", "trainer.inspection.quick"),
    *("ray.dag", "ray.tune", "mlflow.store.tracking.sqlalchemy_store", "optuna.storages._rdb.storage"),
    *("tune.tracking.mlflow", "tune.tracking.optuna_study"),
)
OF_RAYS_PROGRAMS = ("aiohttp.web", "grpc.aio", "prometheus_client")
READ_BY_RAY_AND_MLFLOW = ("MLFLOW_", "RAY_")


def import_for_commands() -> None:
    from mlflow_tables import copy_tables

    from tune.tracking.mlflow_connection import quiet_mlflow

    quiet_mlflow()
    for name in OF_COMMANDS:
        importlib.import_module(name)
    copy_tables()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    commands, workers = (socket.socket(fileno=int(number)) for number in sys.argv[2:])
    with_ray = os.fork() > 0
    if with_ray:
        workers.close()
        server = Server(commands, READ_BY_IMPORTS + READ_BY_RAY_AND_MLFLOW, HERE)
        import_for_commands()
    else:
        commands.close()
        server = Server(workers, READ_BY_IMPORTS, HERE)
        import_for_workers(*OF_RAYS_PROGRAMS)
    asked = server.serve()
    if not asked:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    words = server.become(asked)
    if with_ray:
        sys.executable = str(folder / "python")  # of Ray's workers and the follower
        run(words)  # which ends as it does for a user
    else:
        run_and_end(words)
