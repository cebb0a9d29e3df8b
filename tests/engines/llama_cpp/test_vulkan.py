"""Vulkan without a GPU: on Mesa's lavapipe, which computes on the processor (`make test-vulkan`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.llama_cpp.build import installed_builds
from benchctl.models.files import ResolvedPair
from benchctl.models.shipped import bundled_models
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of, complete, resolved
from tests.engines.conftest import StartServer

pytestmark = [pytest.mark.vulkan, pytest.mark.timeout(1200)]

UPSTREAM = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_F16": "1", "GGML_VK_DISABLE_COOPMAT": "1"}
"""What llama.cpp's own job on llvmpipe sets (.github/workflows/build-vulkan.yml)."""
PROMPT, LENGTH = Prompt(prompt="The capital of France is Paris. The capital of France is"), 24


@pytest.fixture(scope="module")
def vulkan_server() -> Path:
    named = os.environ.get("BENCHCTL_VULKAN_SERVER")
    builds = [build.binary() for build in installed_builds() if build.backend == "vulkan"]
    if not named and not builds:
        pytest.skip("there is no llama-server with Vulkan: `benchctl engines install llama.cpp --vulkan`")
    return Path(named) if named else builds[0]


@pytest.mark.parametrize(
    ("target", "draft"), [("tiny-transformer", "tiny-transformer"), ("tiny-hybrid", "tiny-hybrid-draft")]
)
def test_a_bundled_model_speculates_there(
    vulkan_server: Path, start_server: StartServer, target: str, draft: str
) -> None:
    path = {model.name: model.path for model in bundled_models()}
    models = ResolvedPair(resolved(path[target]), resolved(path[draft]))
    settings: dict[str, Any] = {"binary": vulkan_server, "device": "vulkan", "env": UPSTREAM, "health_timeout_s": 600.0}
    settings |= {"stall_timeout_s": 600.0, "request_timeout_s": 900.0}
    for arm, state in ((arm_of(), "off"), (arm_of("draft-simple", max=3), "active")):
        server = start_server(arm, models, **settings)
        answer = complete(server, server.render(PROMPT), Sampling(max_tokens=LENGTH))
        result = server.attest(answer.ledger.drafted)
        assert answer.n_predicted > 1
        assert result.state == state, result
        assert any("Vulkan0 model buffer size" in line for line in result.evidence)
        server.stop()
