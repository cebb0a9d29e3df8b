"""Facts of any shape become lines of name and value, and commands can be pasted into a shell."""

from __future__ import annotations

import shlex

import pytest

from benchctl.analysis.advice import launch_command
from benchctl.data.manifest import ArmIdentity, SetupIdentity
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


def test_a_card_is_named_with_its_power_limit_and_links() -> None:
    card, link = {"name": "H100", "power_limit_w": 400.0}, {"pcie_generation_max": 5, "pcie_width": 16, "nvlinks": 18}
    machine = {"accelerators": [card, card, {"name": "T4"}], "accelerator_settings": [link, link, {"ecc": True}]}
    assert provenance.cards(machine) == ["2 × H100, 400 W, PCIe 5 x16, 18 NVLinks", "T4"]
    kept = read_manifest(ROOT / "results/padded-cuda/20261127-204443-ee1d")
    assert dict(provenance.glance(kept))["hardware"] == (
        "Intel(R) Xeon(R) Processor, 16 cores, 125.9 GiB memory, NVIDIA H100 80GB HBM3, 700 W, PCIe 5 x16"
    )


def test_settings_that_change_the_speed_of_every_arm_stand_beside_the_engine() -> None:
    eager, padded = (dict(provenance.glance(read_manifest(ROOT / "results" / run)))["engine"] for run in (
        "vllm-gpu/20261126-203918-4fb8",
        "padded-cuda/20261127-204443-ee1d",
    ))  # fmt: skip
    assert eager == "vLLM 0.32.0 on cuda, in bfloat16, with --enforce-eager"
    assert str(padded).endswith("commit 0c1e570)"), "it sets none"
    manifest = read_manifest(ROOT / "results/vllm-gpu/20261126-203918-4fb8")
    for args, shown in (([8, "a b"], "in bfloat16, with 8 'a b'"), ("--eager", "in bfloat16"), (8, "in bfloat16")):
        recipe = {"engine": {"dtype": "bfloat16", "args": args}}
        assert ", ".join(provenance.engine_settings(manifest.model_copy(update={"recipe": recipe}))) == shown
    for axis, settings in (("models.draft", 2), ("engine", 0), ("engine.args", 0)):
        setup = SetupIdentity(
            name="s", group="g", axes={axis: "x"}, engine=manifest.engine, target=manifest.target, draft=None
        )
        several = manifest.model_copy(update={"setups": [setup]})
        assert len(provenance.engine_settings(several)) == settings, "they are those of the first engine"


def test_a_command_survives_the_shell() -> None:
    argv = ["llama-server", "-m", "a model's file.gguf", "--port", "{port}", "$(reboot)"]
    arm = ArmIdentity(name="a", baseline=True, speculation=None, argv=argv, env=["OMP_WAIT_POLICY=passive"])
    assert shlex.split(launch_command(arm)) == ["OMP_WAIT_POLICY=passive", *argv]


@pytest.mark.parametrize(
    ("name", "sizes", "weights"),
    [
        ("bf16", {"f32": 1000, "bf16": 10}, "f32"),
        ("bf16", {"f16": 1000, "bf16": 10, "f32": 1}, "f16"),
        ("bf16", {"bf16": 1000, "f32": 10}, "bf16"),
        ("q4_k_m", {"q4_k": 1000, "q6_k": 400, "f32": 10}, "q4_k_m"),
        ("q4_k_m", {"q5_0": 1000, "q4_k": 400}, "q4_k_m"),
        ("bf16", {"q8_0": 1000, "f32": 10}, "q8_0"),
        ("q8_0", {"f16": 1000, "q8_0": 10}, "f16"),
        (None, {"q8_0": 1000, "f32": 10}, "q8_0"),
    ],
)
def test_the_type_of_a_model_is_that_of_most_bytes(name: str | None, sizes: dict[str, int], weights: str) -> None:
    (file,) = ROOT.glob("results/quantization-sweep/*/manifest.json")
    manifest = read_manifest(file.parent)
    types = {kind: {"count": 1, "bytes": size} for kind, size in sizes.items()}
    target = manifest.target.model_copy(update={"facts": {"file_type": name, "tensor_types": types}})
    facts = provenance.glance(manifest.model_copy(update={"target": target, "setups": []}))
    assert dict(facts)["target"] == f"{target.source}, {weights}"


def test_at_a_glance_every_setups_models_are_named_once() -> None:
    (file,) = ROOT.glob("results/quantization-sweep/*/manifest.json")
    facts = provenance.glance(read_manifest(file.parent))
    assert [name for name, _ in facts] == ["target", "draft", "engine", "hardware"]
    target, draft = (str(value) for _, value in facts[:2])
    assert (target.count("bits per weight"), draft.count("bits per weight")) == (4, 5)
    assert target.count(".gguf") == 1, "a source is named once, however many types it is run in"
