"""vLLM, declared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter
from benchctl.recipes.engine_spec import Dtype, LaunchedEngineSpec
from benchctl.recipes.options import CODE, FILES, NETWORK, TORCH, OptionList, read_flags

_CODE = """
trust-remote-code worker-cls worker-extension-cls scheduler-cls model-class-overrides tool-parser-plugin
reasoning-parser-plugin middleware io-processor-plugin logits-processors distributed-executor-backend executor-class
model-loader-extra-config additional-config code-revision compilation-config logging-config log-config-file
ec-manager-config structured-outputs-config ray-workers-use-nsight
"""
_NETWORK = """
kv-transfer-config ec-transfer-config kv-events-config weight-transfer-config otlp-traces-endpoint
allowed-media-domains master-addr master-port nnodes node-rank data-parallel-address data-parallel-rpc-port
data-parallel-backend data-parallel-rank data-parallel-start-rank data-parallel-size-local data-parallel-external-lb
data-parallel-hybrid-lb data-parallel-multi-port-external-lb data-parallel-supervisor-port headless grpc grpc-port
enable-elastic-ep enable-scale-out allowed-origins allow-credentials allowed-headers allowed-methods hf-token
enable-ssl-refresh tool-server
"""
_ALIASES = """
cc=compilation-config sc=speculative-config n=nnodes r=node-rank dpa=data-parallel-address dpp=data-parallel-rpc-port
dpb=data-parallel-backend dpn=data-parallel-rank dpr=data-parallel-start-rank dpl=data-parallel-size-local
dpe=data-parallel-external-lb dph=data-parallel-hybrid-lb dpm=data-parallel-multi-port-external-lb
"""
_FILES = """
allowed-local-media-path download-dir hf-config-path tokenizer config ssl-keyfile ssl-certfile ssl-ca-certs
profiler-config default-mm-loras uds kv-offloading-backend mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path
"""
_HARMLESS = """
O0 O1 O2 O3 async-scheduling attention-config chat-template-content-format dcp decode-context-parallel-size
default-chat-template-kwargs device-ids disable-custom-all-reduce disable-hybrid-kv-cache-manager disable-log-requests
disable-uvicorn-access-log enable-auto-tool-choice enable-dbo enable-eplb enable-flashinfer-autotune enable-log-requests
enable-lora enable-prompt-tokens-details ep expert-placement-strategy fully-sharded-loras gdn-prefill-backend
gpu-memory-utilization kda-decode-backend kda-prefill-backend kernel-config kv-cache-dtype-skip-layers
kv-cache-memory-bytes kv-cache-metrics kv-sharing-fast-prefill language-model-only limit-mm-per-prompt linear-backend
load-format logprobs-mode long-prefill-token-threshold lora-dtype mamba-backend mamba-ssu-algorithm max-log-len
max-lora-rank max-loras max-num-partial-prefills max-parallel-loading-workers moe-backend num-gpu-blocks-override
numa-bind numa-bind-cpus numa-bind-nodes performance-mode prefix-caching-hash-algo q quantization-config
reasoning-parser safetensors-load-strategy scheduling-policy seed shutdown-timeout sparse-indexer-topk-backend
swa-bounded-replay swap-space tokenizer-mode tool-call-parser ubatch-size use-fp64-gumbel use-replayssm
"""
"""Those that measurements set, beside `CHANGES_TARGET`; another is said in the plan."""

_SPECULATIVE = """
num-speculative-tokens draft-tensor-parallel-size quantization moe-backend attention-backend kv-cache-dtype
max-model-len revision enforce-eager disable-by-batch-size disable-padded-drafter-batch parallel-drafting
use-heterogeneous-vocab prompt-lookup-max prompt-lookup-min speculative-token-tree rejection-sample-method
acceptance-method draft-sample-method posterior-threshold posterior-alpha synthetic-acceptance-rate
synthetic-acceptance-rates synthetic-acceptance-length suffix-decoding-max-tree-depth
suffix-decoding-max-cached-requests suffix-decoding-max-spec-factor suffix-decoding-min-token-prob
index-share-for-mtp-iteration disable-eagle-block-drop use-local-argmax-reduction dspark-draft-topk
num-speculative-tokens-per-batch-size enable-adaptive-verification
"""
"""Keys of `--speculative-config`."""
_VARIABLES = """
VLLM_CPU_KVCACHE_SPACE VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_CPU_MOE_PREPACK VLLM_CPU_SGL_KERNEL
VLLM_ATTENTION_BACKEND VLLM_FLASH_ATTN_VERSION VLLM_USE_FLASHINFER_SAMPLER VLLM_USE_FLASHINFER_MOE_FP8
VLLM_USE_FLASHINFER_MOE_FP4 VLLM_USE_TRTLLM_DECODE_ATTENTION VLLM_USE_DEEP_GEMM VLLM_MLA_DISABLE VLLM_KV_CACHE_LAYOUT
VLLM_MARLIN_USE_ATOMIC_ADD VLLM_DISABLED_KERNELS VLLM_FUSED_MOE_CHUNK_SIZE VLLM_ALL2ALL_BACKEND
VLLM_PP_LAYER_PARTITION VLLM_SKIP_P2P_CHECK VLLM_USE_V1 VLLM_USE_STANDALONE_COMPILE VLLM_DISABLE_COMPILE_CACHE
VLLM_ENABLE_V1_MULTIPROCESSING VLLM_WORKER_MULTIPROC_METHOD VLLM_SLEEP_WHEN_IDLE VLLM_BATCH_INVARIANT
VLLM_COMPUTE_NANS_IN_LOGITS VLLM_LOGGING_LEVEL VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_ROCM_USE_AITER
"""
"""Switches, numbers and choices (`vllm/envs.py`); none names a file, a library, a plugin or a host."""

_TARGET = """
kv-cache-dtype quantization dtype mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode block-size
attention-backend tensor-parallel-size tp pipeline-parallel-size pp data-parallel-size dp enforce-eager
optimization-level O cudagraph-capture-sizes cuda-graph-sizes max-cudagraph-capture-size max-num-batched-tokens
enable-chunked-prefill disable-cascade-attn disable-sliding-window hf-overrides cpu-offload-gb model-impl
enable-prefix-caching enable-expert-parallel override-generation-config
"""
_TARGET_TOO = "compilation-config cc generation-config logits-processors chat-template"
CHANGES_TARGET = frozenset((_TARGET + _TARGET_TOO).split())
"""Types, shapes and places of the target's computation, and what is sampled of it."""
CACHE_TYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")
"""Of `--kv-cache-dtype` (vllm/config/cache.py, CacheDType)."""

OPTIONS = OptionList(
    opens={
        **dict.fromkeys(_CODE.split(), CODE),
        **dict.fromkeys(_NETWORK.split(), NETWORK),
        **dict.fromkeys(_FILES.split(), FILES),
        **dict.fromkeys(
            ("trust-request-chat-template", "trust-request-mm-kwargs", "enable-prompt-embeds", "enable-mm-embeds"),
            "lets any client hand in more than text",
        ),
        "enable-server-load-tracking": "changes what is served",
        "speculative-config": "sets what benchctl's list of keys of speculation does not have",
        "speculative-config.code-revision": CODE,
        "speculative-config.draft-load-config": CODE,
        "speculative-config.model": CODE,  # the class of custom_class; a draft model is models.draft
    },
    reads=frozenset({"chat-template", "lora-modules", "generation-config"}),
    inline=frozenset({"chat-template", "generation-config"}),
    harmless=frozenset((_HARMLESS + _TARGET).split()) | {f"speculative-config.{key}" for key in _SPECULATIVE.split()},
    aliases=dict(alias.split("=") for alias in _ALIASES.split()),
    abbreviated=True,
    variables=TORCH | frozenset(_VARIABLES.split()),
    speculation={"custom_class": CODE},
)

TYPICAL = "typical acceptance"
_EXACT_RULES = {None, "standard", "strict", "probabilistic", "block", "rejection_sampler"}
"""vLLM's ways to verify that keep the target's distribution, over its versions; others are lossy or unknown."""
_RULES = {"synthetic": SYNTHETIC, "typical_acceptance_sampler": TYPICAL}


class VllmSpec(LaunchedEngineSpec):
    """vLLM's server, started for every cell."""

    kind: Literal["vllm"] = Field(description="vLLM's server.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")
    prefix_caching: bool = Field(
        default=False, description="Keep what prompts have in common; on for --mamba-cache-mode align alone."
    )


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Rules of acceptance other than vLLM's exact ones."""
    del env
    return list(_lossy(argv))


def _lossy(argv: Sequence[str]) -> Iterator[str]:
    config: dict[str, object] = {}
    for name, value in read_flags(argv):
        if name in ("speculative-config", "sc"):
            config |= _json_object(value)
        elif name.startswith(("speculative-config.", "sc.")):
            config[name.partition(".")[2].replace("-", "_")] = value
        elif name == "spec-decoding-acceptance-method":  # before speculation had a configuration of its own
            config["acceptance_method"] = value
        elif name.startswith("typical-acceptance-sampler-posterior"):
            yield TYPICAL
    for key in ("rejection_sample_method", "acceptance_method"):
        rule = config.get(key)
        if rule not in _EXACT_RULES:
            yield _RULES.get(str(rule), f"acceptance rule {rule!s}")
    keys = [key for key, value in config.items() if value is not None]
    if any(key.startswith("synthetic_acceptance") for key in keys):
        yield SYNTHETIC
    if any(key in ("posterior_threshold", "posterior_alpha") for key in keys):
        yield TYPICAL


def _json_object(text: str | None) -> dict[str, object]:
    """Read `--speculative-config`; vLLM refuses to start with anything but a JSON object."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """Rates by position, unconditional."""
    return [], {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [round(rate, 6) for rate in rates],
    }


ADAPTER = Adapter(
    spec=VllmSpec,
    engine="benchctl.engines.vllm.engine:VllmEngine",
    inventory="benchctl.engines.vllm.installation:inventory",
    endpoint="benchctl.engines.vllm.engine:FAMILY",
    installer="benchctl.engines.vllm.installation:VllmInstaller",
    model_format="huggingface",
    own_methods=True,
    speculation="benchctl.engines.vllm.command:recipe_problems",
    speculation_arguments="benchctl.engines.vllm.command:option_arguments",
    options=OPTIONS,
    lossy=lossy,
    synthetic=synthetic,
    changes_target=CHANGES_TARGET,
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias"}),
    cache_types=CACHE_TYPES,
    remembers=frozenset({"suffix"}),  # its tree is shared by all requests, where the recipe lets it keep any
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
