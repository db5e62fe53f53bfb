"""What `tune/` and `trainer/` use of other libraries is public: no private name, nothing of theirs replaced."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("trainer", "tune", "tune_whisper")
_HOOK = "transformers' Trainer writes and reads checkpoints in one go; we decide which parts of them"
ALLOWED = {
    "tune/remote/client.py: _do_request": "Ray's job client has no public call with a time limit",
    "trainer/deepspeed.py: _reset_state": "accelerate keeps one state for a process; nothing else begins it anew",
    "trainer/data/embedded.py: _fingerprint": "what tells data sets in memory apart has no public name",
    "trainer/data/parallel.py: _inheriting": "as multiprocessing's own check of the main guard reads it",
    "trainer/training/arguments.py: _n_gpu": "several visible GPUs would make transformers take DataParallel",
    "trainer/training/saving.py: _save_optimizer_and_scheduler": _HOOK,
    "trainer/training/saving.py: _load_optimizer_and_scheduler": _HOOK,
    "trainer/training/saving.py: _save_scaler": _HOOK,
    "trainer/training/saving.py: _load_scaler": _HOOK,
    "trainer/training/saving.py: _save_rng_state": _HOOK,
    "trainer/training/saving.py: _save of transformers": _HOOK,
    "trainer/training/saving.py: _load_from_checkpoint of transformers": _HOOK,
    "trainer/training/saving.py: _prepare_for_training of transformers": _HOOK,
    "trainer/training/whisper_trainer.py: _get_num_items_in_batch of transformers": "the loss counts tokens itself",
    "trainer/training/whisper_trainer.py: _prepare_input of transformers": "features go to the GPU as they are kept",
    "trainer/training/whisper_trainer.py: _prepare_inputs of transformers": "the same",
    "trainer/training/metrics.py: _info of evaluate": "the two methods that a metric of evaluate has to have",
    "trainer/training/metrics.py: _compute of evaluate": "the same",
    # Settings that their libraries ask to be set so.
    "tune/workers/worker_group.py: tempfile.tempdir =": "read anew from TMPDIR, as Python's documentation says",
    "tune/workers/ray_train.py: tempfile.tempdir =": "the same",
    "trainer/data/streaming/shards.py: datasets.config.STREAMING_READ_MAX_RETRIES =": "a setting",
    "trainer/data/streaming/shards.py: datasets.config.STREAMING_OPEN_MAX_RETRIES =": "a setting",
    "trainer/training/arguments.py: torch.backends.fp32_precision =": "a setting",
    "trainer/training/arguments.py: torch.backends.cuda.matmul.allow_tf32 =": "a setting",
    "trainer/training/arguments.py: torch.backends.cudnn.allow_tf32 =": "a setting",
}
"""File and what it uses, with the reason."""
FILES = {
    path: ast.parse(path.read_text("utf-8"))
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name != "_exit"


def own_names() -> set[str]:
    """What our own classes and modules define."""
    found = set()
    for node in (node for tree in FILES.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return found


def used(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Private names of others, and attributes of imported things that are set or deleted."""
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names for name in alias.name.split(".") if private(name))
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            yield from (name for name in names if private(name))
        elif isinstance(node, ast.Attribute):
            if private(node.attr) and node.attr not in own:
                yield node.attr
            base: ast.expr = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            changed = isinstance(node.ctx, ast.Store | ast.Del)
            if changed and isinstance(base, ast.Name) and base.id in imported:
                yield f"{ast.unparse(node)} ="
        elif isinstance(node, ast.Subscript):
            if isinstance(node.ctx, ast.Store | ast.Del) and ast.unparse(node.value).endswith("modules"):
                yield f"{ast.unparse(node.value)} ="
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "delattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            if private(name) and name not in own:
                yield str(name)
            if ast.unparse(node.func) != "getattr" and ast.unparse(node.args[0]).split(".")[0] in imported:
                yield f"{ast.unparse(node.args[0])} ="


def overridden(module: str) -> Iterator[str]:
    """Private methods of other libraries' classes that ours replace."""
    for _, cls in inspect.getmembers(importlib.import_module(module), inspect.isclass):
        if cls.__module__ != module:
            continue
        for base in cls.__mro__[1:]:
            top = base.__module__.split(".")[0]
            if top in PACKAGES or top in (
                "builtins",
                "typing",
                "abc",
                "fsspec",
            ):  # fsspec's copies its class's
                continue
            names = {name for name, value in vars(cls).items() if private(name) and inspect.isfunction(value)}
            yield from (f"{name} of {top}" for name in names & set(vars(base)))


def test_nothing_private_is_used_and_nothing_replaced() -> None:
    own, found = own_names(), set()
    for path, tree in FILES.items():
        name = str(path.relative_to(ROOT))
        found |= {f"{name}: {what}" for what in used(tree, own)}
        if path.name not in ("__main__.py", "job_driver.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found |= {f"{name}: {what}" for what in overridden(module)}
    assert sorted(found - set(ALLOWED)) == []
    assert sorted(set(ALLOWED) - found) == [], "allowed, and not used any more"
