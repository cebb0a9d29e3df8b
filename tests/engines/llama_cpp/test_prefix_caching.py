"""`engine.prefix_caching` on the real llama-server."""

from __future__ import annotations

import pytest

from benchctl.measurement.recording import measured_fields
from benchctl.models.files import ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling
from tests.engines.cells import arm_of, complete
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("caching", [True, False])
def test_a_prompt_that_is_asked_again(start_server: StartServer, tiny_pair: ResolvedPair, caching: bool) -> None:
    server = start_server(arm_of("draft-simple", max=4), tiny_pair, prefix_caching=caching)
    prompt = server.render(Prompt(prompt="def add(a, b):\n    return a + b\n\n" * 4))
    first, again = (complete(server, prompt, Sampling(max_tokens=8)) for _ in range(2))
    assert first.cached_tokens == 0
    assert again.cached_tokens is not None and again.engine_prompt_s
    assert (0 < again.cached_tokens < len(prompt.token_ids)) if caching else again.cached_tokens == 0
    assert again.prompt_tokens == len(prompt.token_ids)
    assert again.token_ids == first.token_ids
    fields = measured_fields(again)
    read = again.prompt_tokens - again.cached_tokens
    assert fields["prompt_per_sec"] == read / again.engine_prompt_s
    assert fields["cached_tokens"] == again.cached_tokens
    assert server.attest(None).state == "active"
