from __future__ import annotations

import pytest

from benchctl.engines.common.process import engine_environment, refused_variables

CALLER = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C",
    "CUDA_VISIBLE_DEVICES": "1",
    **dict.fromkeys(("GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"), "0"),
    "LLAMA_ARG_DRAFT_MAX": "4",
    "LLAMA_TRACE": "1",
    "GGML_CUDA_FORCE_MMQ": "1",
    "OMP_NUM_THREADS": "7",
    "OMP_WAIT_POLICY": "active",
    "AIP_MODE": "PREDICTION",
    "HF_TOKEN": "hf_x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "https_proxy": "http://x",
    "XDG_CONFIG_HOME": "/home/me/.config",
}


def test_only_what_an_engine_needs_is_kept() -> None:
    assert engine_environment(CALLER, {"GGML_METAL_PATH": "/m"}) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "1",
        "GGML_VK_VISIBLE_DEVICES": "0",
        "VK_DRIVER_FILES": "0",
        "HIP_VISIBLE_DEVICES": "0",
        "ZE_AFFINITY_MASK": "0",
        "XDG_CONFIG_HOME": "/dev/null",
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "GGML_METAL_PATH": "/m",
    }


@pytest.mark.parametrize("name", ["LLAMA_ARG_SPEC_TYPE", "HF_TOKEN", "MY_API_KEY", "DB_PASSWORD", "XDG_CONFIG_HOME"])
def test_a_recipe_cannot_set_what_hides_or_leaks(name: str) -> None:
    (problem,) = refused_variables({name: "x", "GGML_X": "1", "KEYBOARD": "us"})
    assert name in problem
