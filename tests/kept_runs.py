"""The project's runs as files: the six that the repository keeps, and the others, packed below tests/oracle/runs/.

A run left the repository (benchmarks/restore_runs.py brings it back with its logs and report) but is still read by the
tests, since each has a shape of its own: two targets and five drafts, synthetic acceptance, other engines, a baseline
measured twice. Its manifest, records and scores are in the archive, its engine logs are not.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.restore_runs import unpack

REPOSITORY = Path(__file__).parents[1]
ARCHIVES = REPOSITORY / "tests" / "oracle" / "runs"
IN_THE_TREE = (
    "padded-cuda/20261127-204443-ee1d",
    "qwen2.5-coder/20261122-191218-f263",
    "qwen2.5-coder-bf16/20261125-232328-f38a",
    "vllm-gpu/20261126-203918-4fb8",
    "vllm-gpu-hybrid/20261126-204039-5681",
    "vllm-hybrid/20261121-180606-c5c1",
)
ROOT = Path(mkdtemp(prefix="benchctl-kept-"))
"""A folder with all of them below `results/<recipe>/<run>/`."""

atexit.register(shutil.rmtree, ROOT, ignore_errors=True)
for _run in IN_THE_TREE:  # by name: results/ may hold runs of one's own
    shutil.copytree(REPOSITORY / "results" / _run, ROOT / "results" / _run, ignore=shutil.ignore_patterns("logs"))
for _archive in ARCHIVES.glob("*.tar.xz"):
    with tarfile.open(_archive) as _packed:
        unpack(_packed, ROOT / "results")

RUNS = sorted(manifest.parent for manifest in ROOT.glob("results/*/*/manifest.json"))
"""Their folders; the same order on every machine."""
