"""Facts of any shape become lines of name and value, and commands can be pasted into a shell."""

from __future__ import annotations

import shlex

from benchctl.analysis.advice import launch_command
from benchctl.data.manifest import ArmIdentity
from benchctl.data.store import read_manifest
from benchctl.reports.tables import provenance
from tests.kept_runs import ROOT


def test_nested_facts() -> None:
    machine = {
        "cpu": "EPYC",
        "memory_bytes": 2**33,
        "usable_cores": 2.0,
        "boost": None,
        "container": True,
        "accelerators": [],
        "tensor_types": {"bf16": {"count": 37, "bytes": 1024}},
        "gpus": [{"name": "A"}, {"name": "B"}],
        "flags": [f"--{i}" for i in range(99)],
    }
    assert list(provenance.flatten(machine)) == [
        ("cpu", "EPYC"),
        ("memory", "8.0 GiB"),
        ("usable cores", "2"),
        ("boost", "not known"),
        ("container", "yes"),
        ("accelerators", "none"),
        ("tensor types · bf16 · count", "37"),
        ("tensor types · bf16", "1.0 KiB"),
        ("gpus 1 · name", "A"),
        ("gpus 2 · name", "B"),
        ("flags", "99 entries, listed in the run's manifest.json"),
    ]


def test_a_command_survives_the_shell() -> None:
    argv = ["llama-server", "-m", "a model's file.gguf", "--port", "{port}", "$(reboot)"]
    arm = ArmIdentity(name="a", baseline=True, speculation=None, argv=argv, env=["OMP_WAIT_POLICY=passive"])
    assert shlex.split(launch_command(arm)) == ["OMP_WAIT_POLICY=passive", *argv]


def test_at_a_glance_every_setups_models_are_named_once() -> None:
    (file,) = ROOT.glob("results/quantization-sweep/*/manifest.json")
    facts = provenance.glance(read_manifest(file.parent))
    roles = [name for name, _ in facts]
    assert [roles.count(role) for role in ("target", "draft", "engine")] == [4, 5, 1]
    assert len(set(facts)) == len(facts)
