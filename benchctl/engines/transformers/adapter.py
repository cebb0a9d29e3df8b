"""Hugging Face transformers behind a server of benchctl's own, declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import Adapter, Usual
from benchctl.recipes.engine_spec import Dtype, LaunchedEngineSpec


class TransformersSpec(LaunchedEngineSpec):
    """A model of transformers, in a server started for every cell."""

    kind: Literal["transformers"] = Field(description="Hugging Face transformers: self-speculation and its reference.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")
    trace: bool = Field(
        default=False, description="Write what every round did beside each engine log: `*.rounds.jsonl`."
    )
    remote_code: bool = Field(default=False, description="Run code that the model's folder brings. It can do anything.")


ADAPTER = Adapter(
    spec=TransformersSpec,
    engine="benchctl.engines.transformers.engine:TransformersEngine",
    inventory="benchctl.engines.transformers.engine:inventory",
    installer="benchctl.engines.transformers.engine:TransformersInstaller",
    converting_python="benchctl.engines.transformers.engine:converting_python",
    model_format="huggingface",
    usual=Usual(start_s=14.0, step_s=0.012),  # on an H100
    sampling=frozenset({"repeat_penalty", "logit_bias"}),
    scored=frozenset({"repeat_penalty", "logit_bias"}),
    own_methods=True,
    speculation="benchctl.engines.transformers.speculation:recipe_problems",
    reads_prompt_in_round=frozenset(  # transformers' own assisted generation
        {"assisted", "assisted-universal", "prompt-lookup", "early-exit", "draft-simple", "ngram-simple"}
    ),
    typed_options=True,
    runs_code=frozenset({"remote_code"}),
    example=("# dtype: float32         # precision of the weights; left out: the model's own",),
)
