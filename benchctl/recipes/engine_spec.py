"""A recipe's settings of its engine, whichever it is: every adapter derives its own part of the schema from these."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

Device = Literal["auto", "cpu", "cuda", "metal", "vulkan", "rocm", "sycl", "rpc"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class Strict(BaseModel):
    """Base of every part of a recipe: unknown keys are errors, values are not coerced, instances do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class EngineSpec(Strict):
    """Keys that every engine has. An adapter's class narrows `kind` to its own name and adds what it alone takes."""

    kind: str = Field(description="Which engine.")
    context: int = Field(default=4096, ge=64, le=10_000_000, description="Context length in tokens.")
    request_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="How long an answer may take.")
    stall_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=7200,
        description="How long no token may come, from the request on (prompt included) or from the last token.",
    )


_TEXT = {"type": "string"}
_LISTED = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}, {"type": "null"}]})


class LaunchedEngineSpec(EngineSpec):
    """Keys of an engine that benchctl starts."""

    binary: Annotated[str | None, _LISTED] = Field(
        default=None, description="A path, or a name to be found on PATH; a list: builds to compare, an axis."
    )
    device: Device = Field(default="auto", description="Where the models run; auto: what the engine chooses.")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of the engine; null: its cores.")
    args: list[str] = Field(default_factory=list, description="Passed through as they are, after benchctl's own.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the scrubbed environment. No secrets here.")
    health_timeout_s: float = Field(default=300.0, gt=0, le=7200, description="How long a start may take.")


class CachingEngineSpec(LaunchedEngineSpec):
    """Keys of an engine that can keep what it read of earlier prompts."""

    prefix_caching: bool = Field(
        default=False, description="Let a request reuse what earlier ones left of the same beginning in the cache."
    )


class EndpointSpec(EngineSpec):
    """Keys of an endpoint that runs already."""

    url: str | None = Field(
        default=None, description="Where the endpoint listens.", examples=["http://127.0.0.1:8000/v1"]
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] | None = Field(
        default=None, description="The environment variable that holds the API key. Never the key itself."
    )
    only_speculation_differs: bool = Field(
        default=False,
        description="You vouch that the arms' endpoints were started as the baseline's but for speculation. Without it "
        "a difference between two servers is not called a violation of speculation.",
    )
