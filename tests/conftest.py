"""What several test files share: where the test data lies, and a small set of the demo's clips."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from trainer.config import TrainConfig
from trainer.threads import one_torch_thread

# A test that has a gRPC server of its own leaves threads that would talk at every later fork of the same process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Several tests run at a time: more threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests are of CPUs; with TEST_GPU=1 those that need a GPU run too.
if not os.environ.get("TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TUNE_WHISPER_PRETEND_GPUS"] = "1"  # many tell Ray of GPUs that are not there
# A run that a script began in the background ignores Ctrl-C, and all that it starts would.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What the processes of one run share lies under this name (see `mlflow_server.shared_folder`).
os.environ.setdefault("TEST_RUN", str(os.getpid()))
ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))  # the made-up curves and the simulator
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real speech; a user's checkout has none."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real speech of ../shared/data, which is not part of the checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def feature_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One feature cache for the whole run."""
    return tmp_path_factory.mktemp("feature-cache")


# A busy machine is slow now and then, which is no fault of what is tested.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")


@pytest.fixture(scope="session")
def small_config(feature_cache: Path) -> TrainConfig:
    """The demo model on 48 training and 16 validation clips of the demo data."""
    return TrainConfig(
        cache_dir=str(feature_cache),
        max_train_clips=48,
        max_eval_clips=16,
        generation_max_length=40,
        learning_rate=1e-3,
    )


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums over more threads differ in their last digits; so have the processes of `distributed_run.py`."""
    with one_torch_thread():
        yield


def pytest_sessionstart() -> None:
    """Remove what searches of runs of yesterday and before shared (see `mlflow_server.shared_folder`)."""
    for folder in (Path(tempfile.gettempdir()) / f"tune-whisper-tests-{os.getuid()}").glob("*"):
        if time.time() - folder.stat().st_mtime > 86_400:
            shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with whole runs first: handed out last, one of them would keep a single worker busy in the end."""
    runs = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -runs[item.path])
