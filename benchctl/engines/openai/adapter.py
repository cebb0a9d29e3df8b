"""Endpoints that run already and speak OpenAI's protocol, declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import Adapter
from benchctl.recipes.engine_spec import EndpointSpec


class OpenAiSpec(EndpointSpec):
    """An endpoint that runs already and speaks OpenAI's protocol."""

    kind: Literal["openai"] = Field(description="An endpoint that runs already.")


ADAPTER = Adapter(
    spec=OpenAiSpec,
    engine="benchctl.engines.openai.engine:OpenAiEngine",
    inventory="benchctl.engines.openai.engine:inventory",
    model_format="served",
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar"}),
    # Depends on the server, which may be unknown: whatever remembers on any of them.
    remembers=frozenset(
        {"ngram", "ngram-simple", "ngram-cache", "ngram-mod", "ngram-map-k", "ngram-map-k4v", "suffix"}
    ),
    example=(
        "url: http://127.0.0.1:8000/v1",
        "# api_key_env: MY_API_KEY   # the variable that holds the key, never the key itself",
    ),
)
