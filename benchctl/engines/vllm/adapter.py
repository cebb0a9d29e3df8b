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
_FILES = """
allowed-local-media-path download-dir hf-config-path tokenizer config ssl-keyfile ssl-certfile ssl-ca-certs
profiler-config default-mm-loras uds kv-offloading-backend mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path
"""
_HARMLESS = """
O O0 O1 O2 O3
ac aggregate-engine-logging all2all-backend allow-deprecated-quantization anthropic-disabled-thinking-effort asc
async-scheduling attention-backend attention-config aux-output-config block-size chat-template-content-format
cohere-format cohere-is-reasoning-model collect-detailed-traces config-format convert cp-kv-cache-interleave-size
cpu-distributed-timeout-seconds cpu-offload-gb cpu-offload-params cuda-graph-sizes cudagraph-capture-sizes
cudagraph-metrics custom-histogram-buckets dbo-decode-token-threshold dbo-prefill-token-threshold dc dcp
dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate decode-context-parallel-size
default-chat-template-kwargs device-ids device-memory-utilization diffusion-config disable-access-log-for-endpoints
disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
disable-hybrid-kv-cache-manager disable-log-requests disable-nccl-for-dp-synchronization disable-sliding-window
disable-uvicorn-access-log distributed-timeout-seconds dp dp-supervisor-probe-failure-threshold
dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval elastic-ep-max-dp-size
enable-auto-tool-choice enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo
enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction
enable-flashinfer-autotune enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas
enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
enable-mixed-moe-lora-format enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs
enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts enable-shm-tensor-arena
enable-sleep-mode enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay enforce-eager
engram-config ep eplb-config exclude-tools-when-tool-choice-none expert-placement-strategy fail-on-environ-validation
fault-tolerance-config fingerprint-mode fingerprint-value fully-sharded-loras gdn-prefill-backend
gpu-memory-utilization h11-max-header-count h11-max-incomplete-event-size hf-overrides ignore-patterns
interleave-mm-strings ir-op-priority jit-monitor-mode jit-monitor-verbose kda-decode-backend kda-prefill-backend
kernel-config kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes kv-cache-metrics kv-cache-metrics-sample
kv-offloading-size kv-sharing-fast-prefill language-model-only limit-mm-per-prompt linear-backend load-format
log-error-stack log-level logprobs-mode long-prefill-token-threshold long-prefill-token-threshold-adaptive lora-dtype
lora-target-modules mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds
mamba-ssm-cache-dtype mamba-ssu-algorithm max-cpu-loras max-cudagraph-capture-size max-log-len
max-long-partial-prefills max-lora-cls-labels max-lora-rank max-loras max-num-active-seqs max-num-batched-tokens
max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens
max-parallel-loading-workers media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype
mm-encoder-fp8-scale-save-margin mm-encoder-only mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb
mm-tensor-ipc model-impl moe-backend num-gpu-blocks-override numa-bind numa-bind-cpus numa-bind-nodes offload-backend
offload-group-size offload-num-in-group offload-params offload-prefetch-step optimization-level
override-generation-config pcp performance-mode pipeline-parallel-size pooler-config pp prefill-context-parallel-size
prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit
pt-load-map-location q quantization quantization-config reasoning-config reasoning-parser renderer-num-workers
replayssm-buffer-len response-role return-sampling-mask runner safetensors-load-strategy
safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-reserve-full-isl scheduling-policy seed
show-hidden-metrics-for-version shutdown-timeout skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph
sleep-preserve-parameter-names sparse-indexer-topk-backend specialize-active-lora sse-keep-alive-interval
ssl-cert-reqs ssl-ciphers swa-bounded-replay swap-space tensor-parallel-size tokenizer-mode tokenizer-revision
tokens-only tool-call-parser tool-strict-level tp ubatch-size use-fp64-gumbel use-replayssm use-tqdm-on-load
uvicorn-log-level video-pruning-method video-pruning-rate watermark watermark-config
"""

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
VLLM_ATTENTION_BACKEND VLLM_FLASH_ATTN_VERSION VLLM_USE_TRITON_FLASH_ATTN VLLM_USE_TRITON_AWQ
VLLM_USE_FLASHINFER_SAMPLER VLLM_FLASHINFER_FORCE_TENSOR_CORES VLLM_USE_FLASHINFER_MOE_FP8 VLLM_USE_FLASHINFER_MOE_FP4
VLLM_USE_TRTLLM_DECODE_ATTENTION VLLM_USE_CUDNN_PREFILL VLLM_USE_DEEP_GEMM VLLM_MLA_DISABLE VLLM_KV_CACHE_LAYOUT
VLLM_MARLIN_USE_ATOMIC_ADD VLLM_DISABLED_KERNELS VLLM_USE_NVFP4_CT_EMULATIONS VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE
VLLM_FUSED_MOE_CHUNK_SIZE VLLM_ENABLE_FUSED_MOE_ACTIVATION_CHUNKING VLLM_MOE_DP_CHUNK_SIZE VLLM_ALL2ALL_BACKEND
VLLM_PP_LAYER_PARTITION VLLM_SKIP_P2P_CHECK VLLM_USE_V1 VLLM_USE_STANDALONE_COMPILE VLLM_DISABLE_COMPILE_CACHE
VLLM_ENABLE_V1_MULTIPROCESSING VLLM_WORKER_MULTIPROC_METHOD VLLM_V1_OUTPUT_PROC_CHUNK_SIZE VLLM_SLEEP_WHEN_IDLE
VLLM_BATCH_INVARIANT VLLM_COMPUTE_NANS_IN_LOGITS VLLM_LOGGING_LEVEL VLLM_LOG_BATCHSIZE_INTERVAL
VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_RPC_TIMEOUT VLLM_MQ_MAX_CHUNK_BYTES_MB
VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK Q_SCALE_CONSTANT K_SCALE_CONSTANT V_SCALE_CONSTANT
VLLM_ROCM_USE_AITER VLLM_ROCM_USE_AITER_PAGED_ATTN VLLM_ROCM_USE_AITER_LINEAR VLLM_ROCM_USE_AITER_MOE
VLLM_ROCM_USE_AITER_RMSNORM VLLM_ROCM_USE_AITER_MLA VLLM_ROCM_USE_SKINNY_GEMM VLLM_ROCM_FP8_PADDING
VLLM_ROCM_MOE_PADDING VLLM_ROCM_CUSTOM_PAGED_ATTN VLLM_ROCM_QUICK_REDUCE_QUANTIZATION
VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB
"""
"""Switches, numbers and choices (`vllm/envs.py`); none names a file, a library, a plugin or a host."""

_TARGET = """
kv-cache-dtype quantization dtype mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode block-size
attention-backend tensor-parallel-size tp pipeline-parallel-size pp data-parallel-size dp enforce-eager
compilation-config cc optimization-level O cudagraph-capture-sizes cuda-graph-sizes max-cudagraph-capture-size
max-num-batched-tokens enable-chunked-prefill disable-cascade-attn disable-sliding-window hf-overrides cpu-offload-gb
model-impl enable-prefix-caching enable-expert-parallel generation-config override-generation-config
logits-processors chat-template
"""
CHANGES_TARGET = frozenset(_TARGET.split())
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
    harmless=frozenset(_HARMLESS.split()) | {f"speculative-config.{key}" for key in _SPECULATIVE.split()},
    aliases={
        **{"cc": "compilation-config", "sc": "speculative-config", "n": "nnodes", "r": "node-rank"},
        **{"dpa": "data-parallel-address", "dpp": "data-parallel-rpc-port", "dpb": "data-parallel-backend"},
        **{"dpn": "data-parallel-rank", "dpr": "data-parallel-start-rank", "dpl": "data-parallel-size-local"},
        **{
            "dpe": "data-parallel-external-lb",
            "dph": "data-parallel-hybrid-lb",
            "dpm": "data-parallel-multi-port-external-lb",
        },
    },
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
    endpoint="benchctl.engines.vllm.score:FAMILY",
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
    remembers=frozenset({"suffix"}),  # its tree is one for all requests, where the recipe lets it keep any
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
