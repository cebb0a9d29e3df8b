"""SGLang, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter
from benchctl.recipes.engine_spec import Dtype, LaunchedEngineSpec
from benchctl.recipes.options import CODE, FILES, NETWORK, TORCH, OptionList, read_flags

_CODE = """
trust-remote-code custom-sigquit-handler enable-custom-logit-processor json-model-override-args
model-loader-extra-config forward-hooks custom-weight-loader sidecar sidecar-args hicache-storage-backend
hicache-storage-backend-extra-config enable-unified-cache-external-linker unified-cache-external-linker-backend
unified-cache-external-linker-config enable-lmcache enable-flexkv radix-cache-backend use-ray
"""
_NETWORK = """
dist-init-addr nccl-init-addr nnodes node-rank nccl-port otlp-traces-endpoint kv-events-config disaggregation-mode
enable-trace collect-tokens-histogram enable-http-worker-reuseport gated-launch-port grpc-port grpc-http-sidecar-port
smg-http-sidecar-port engine-info-bootstrap-port encoder-bootstrap-port encoder-urls encoder-register-urls
encoder-only language-only encoder-transfer-backend disaggregation-bootstrap-port disaggregation-transfer-backend
disaggregation-ib-device mooncake-ib-device remote-instance-weight-loader-seed remote-instance-weight-loader-backend
remote-instance-weight-loader-seed-instance-ip remote-instance-weight-loader-seed-instance-service-port
remote-instance-weight-loader-send-weights-group-ports remote-instance-weight-loader-start-seed-via-transfer-engine
decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints decoupled-spec-rank decoupled-spec-role
load-publish-endpoint allowed-media-domains modelexpress-config tool-server enable-ssl-refresh elastic-ep-join-mode
enable-mm-global-cache mm-global-cache-backend fastapi-root-path
"""
_FILES = """
download-dir file-storage-path crash-dump-folder dump-requests-folder log-requests-target tokenizer-path
export-metrics-to-file export-metrics-to-file-dir config delete-ckpt-after-loading decrypted-config-file
decrypted-draft-config-file debug-tensor-dump-input-file debug-tensor-dump-output-folder kt-weight-path
modelopt-checkpoint-restore-path modelopt-checkpoint-save-path modelopt-export-path quantize-and-serve
quantization-param-path lmcache-config-file flexkv-config-file pdmux-config-path msprobe-dump-config
weight-cache-socket weight-cache-mode spec-trace-dir speculative-ngram-external-corpus-path
speculative-adaptive-config speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path
speculative-token-map ple-offload-dir init-expert-location deepep-config dllm-algorithm-config model-checksum
forward-pass-metrics-ipc-name ssl-ca-certs
"""
_HARMLESS = """
abort-on-priority-when-disabled allow-auto-truncate asr-max-buffer-seconds asr-max-concurrent-sessions
attention-backend attention-context-parallel-size attention-data-parallel-size attn-cp-size attn-dp-size base-gpu-id
batch-notify-size bf16-gemm-backend boundary-reduction bucket-e2e-request-latency bucket-inter-token-latency
bucket-time-to-first-token c128-page-size checkpoint-engine-wait-weights-before-ready chunked-prefill-size
constrained-json-disable-any-whitespace constrained-json-max-whitespace-cnt constrained-json-whitespace-pattern
context-bucket cp-strategy cpu-offload-gb cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-bs
cuda-graph-bs-decode cuda-graph-bs-prefill cuda-graph-config cuda-graph-max-bs cuda-graph-max-bs-decode
cuda-graph-max-bs-prefill cuda-graph-max-seq-len-prefill cuda-graph-prefill-max-context data-parallel-size
dcp-comm-backend dcp-replicate-q-proj dcp-size debug-cuda-graph debug-tensor-dump-layers decode-attention-backend
decode-context-parallel-size decode-log-interval deepep-dispatcher-output-dtype deepep-mode deepep-v2-mode
default-chat-template-kwargs default-priority-value detokenizer-worker-num disable-aiter-allreduce-fusion-in-decode
disable-aiter-allreduce-fusion-in-prefill disable-attn-tp-gather disable-chunked-prefix-cache disable-cuda-graph
disable-cuda-graph-padding disable-custom-all-reduce disable-decode-cuda-graph disable-fast-image-processor
disable-flashinfer-autotune disable-flashinfer-cutlass-moe-fp4-allgather disable-hybrid-swa-memory
disable-outlines-disk-cache disable-overlap-schedule disable-prefill-cuda-graph disable-priority-preemption
disable-shared-experts-fusion disable-tokenizer-batch-decode disaggregation-decode-allocation-policy
disaggregation-decode-enable-offload-kvcache disaggregation-decode-enable-radix-cache
disaggregation-decode-extra-slots disaggregation-decode-host-receive-threshold disaggregation-decode-polling-interval
disaggregation-decode-retraction-backup disaggregation-enable-kv-checksum dist-timeout dllm-algorithm dllm-fdfo
dp-size dsa-decode-backend dsa-paged-mqa-logits-backend dsa-prefill-backend dsa-topk-backend dsa-triton-union
dsv4-attn-backend dsv4-prefill-backend dwdp-size dynamic-batch-tokenizer-batch-size
dynamic-batch-tokenizer-batch-timeout elastic-ep-backend elastic-ep-initial-size elastic-ep-join-rank-offset
elastic-ep-scale-timeout enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion enable-amd-monokernel
enable-attn-tp-input-scattered enable-broadcast-mm-inputs-process enable-cache-report enable-cp-decode-attn-tp
enable-cudagraph-gc enable-decoder-swa-bounded-replay enable-deepseek-v4-fp4-indexer enable-dense-mlp-attn-tp
enable-deterministic-inference enable-dp-attention enable-dp-attention-local-control-broadcast enable-dp-lm-head
enable-draft-weights-cpu-backup enable-dsa-cache-layer-split enable-dsa-fused-indexer enable-dynamic-batch-tokenizer
enable-dynamic-chunking enable-elastic-expert-backup enable-encoder-swa-bounded-replay enable-eplb
enable-flashinfer-allreduce-fusion enable-forward-pass-metrics enable-fp32-lm-head enable-fused-moe-sum-all-reduce
enable-fused-qk-norm-rope enable-hicache enable-hierarchical-cache enable-hisparse enable-http2
enable-int8-mamba-checkpoint enable-kv-cache-sharding enable-layernorm-sp enable-layerwise-nvtx-marker
enable-lean-attention enable-linear-replayssm enable-linear-replayssm-spec enable-linker-mla-dedup enable-lora
enable-lora-overlap-loading enable-mamba-cache-stochastic-rounding enable-megamoe-for-layernorm-sp enable-memory-saver
enable-metrics enable-metrics-for-all-schedulers enable-mfu-metrics enable-mis enable-mixed-chunk enable-mscclpp
enable-multi-layer-eagle enable-multimodal enable-nccl-nvls enable-nvidia-megakernel enable-p2p-check
enable-page-major-kv-layout enable-paged-experts enable-pd-role-switch enable-pdmux
enable-precise-embedding-interpolation enable-prefill-cp enable-prefill-delayer enable-prefix-mm-cache
enable-priority-scheduling enable-profile-cuda-graph enable-quant-communications enable-request-time-stats-logging
enable-response-store enable-return-aux-hidden-states enable-return-hidden-states enable-return-indexer-topk
enable-return-routed-experts enable-scattered-sconv enable-session-radix-cache enable-shared-experts-attn-tp
enable-single-batch-overlap enable-streaming-session enable-strict-thinking enable-symm-mem enable-tf32-matmul
enable-tokenizer-batch-encode enable-torch-compile enable-torch-compile-debug-mode enable-torch-symm-mem
enable-tp-lm-head-all-to-all enable-two-batch-overlap enable-unified-memory enable-w4a4-mxfp4-megamoe enable-waterfill
enable-watermark enable-weights-cpu-backup enforce-disable-flashinfer-allreduce-fusion enforce-shared-experts-fusion
ep ep-dispatch-algorithm ep-num-redundant-experts ep-size eplb-algorithm eplb-min-rebalancing-utilization-threshold
eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations expert-balancedness-report-mode
expert-distribution-recorder-buffer-size expert-distribution-recorder-mode expert-parallel-size
experts-shared-outer-loras extra-metric-labels flashinfer-a2a-dispatch-type flashinfer-allreduce-fusion-backend
flashinfer-autotune-skip-ops flashinfer-mla-disable-ragged flashinfer-mxfp4-moe-precision
forward-pass-metrics-worker-id fp4-gemm-backend fp8-gemm-backend fuseep-mode gc-threshold gc-warning-threshold-secs
generation-tokens-buckets gpu-id-step grammar-backend grpc-response-timeout-secs hf-chat-template-name
hicache-host-memory-fraction hicache-host-memory-mode hicache-io-backend hicache-mem-layout hicache-ratio hicache-size
hicache-storage-prefetch-policy hicache-storage-prefetch-retry-max-attempts
hicache-storage-prefetch-retry-poll-interval hicache-write-policy hierarchical-sparse-attention-extra-config
hisparse-config http2-initial-connection-window-size http2-max-concurrent-streams image-processor-backend
int8-mamba-ckpt-size is-embedding kt-cpuinfer kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts
kt-threadpool-count kv-cache-dtype kv-canary kv-canary-real-data kv-canary-sweep-interval language-model-only
limit-mm-data-per-request linear-attn-backend linear-attn-decode-backend linear-attn-prefill-backend
linear-attn-verify-backend linear-replayssm-cache-len load-balance-method load-format load-snapshot-publish-interval
log-level log-level-http log-requests log-requests-format log-requests-level lora-backend lora-drain-wait-threshold
lora-eviction-policy lora-strict-loading lora-target-modules lora-use-virtual-experts mamba-backend
mamba-cache-philox-rounds mamba-full-memory-ratio mamba-max-states-per-path mamba-radix-cache-strategy mamba-ssm-dtype
mamba-track-interval max-ep-size max-loaded-loras max-lora-chunk-size max-lora-rank max-loras-per-batch
max-mamba-cache-size max-prefill-tokens max-queued-requests max-total-tokens media-url-max-file-size-mb
mem-fraction-static min-free-slots-delay mlx-enable-sampling mm-attention-backend mm-enable-dp-encoder
mm-feature-transport mm-io-worker-num mm-preprocess-cache-size-mb mm-process-config mm-processor-worker-num
model-config-parser model-impl modelopt-quant moe-a2a-backend moe-data-parallel-size moe-dense-tp-size moe-dp-size
moe-runner-backend monokernel-backend num-continuous-decode-steps num-reserved-decode-tokens numa-node
offload-group-size offload-mode offload-num-in-group offload-prefetch-step optimistic-prefill-attempts
otlp-service-name page-size paged-experts-num-resident pipeline-parallel-size ple-offload-backend
ple-offload-embedding pp-async-batch-depth pp-max-micro-batch-size pp-size pre-warm-nccl preferred-sampling-params
prefill-attention-backend prefill-decode-interval prefill-decode-interval-min-bs
prefill-delayer-forward-passes-buckets prefill-delayer-max-delay-ms prefill-delayer-max-delay-passes
prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark prefill-delayer-wait-seconds-buckets
prefill-kv-cache-dequant-dtype prefill-max-requests prefill-only-disable-kv-cache
priority-scheduling-preemption-threshold prompt-tokens-buckets qsa-indexer-dtype quantization radix-eviction-policy
radix-eviction-policy-config reasoning-parser retraction-policy return-aux-hidden-state-layer-ids
return-hidden-states-mode return-input-ids return-output-ids rl-on-policy-target rl-quant-profile sampling-backend
sampling-defaults sampling-mask-max-tokens schedule-conservativeness schedule-low-priority-values-first
schedule-policy scheduler-recv-interval shared-experts-tp-size show-time-cost skip-server-warmup sleep-on-idle
sm-group-num soft-watchdog-timeout speculative-accept-threshold-acc speculative-accept-threshold-single
speculative-adaptive speculative-attention-mode speculative-dflash-block-size speculative-domino-candidate-pool-size
speculative-draft-attention-backend speculative-draft-kv-cache-dtype speculative-draft-load-format
speculative-draft-model-quantization speculative-draft-model-revision speculative-draft-sink-size
speculative-draft-window-size speculative-dsa-topk-backend speculative-dspark-align-verify-tokens-to-graph-tier
speculative-dspark-block-size speculative-eagle-topk speculative-enable-w4a4-mxfp4-megamoe speculative-moe-a2a-backend
speculative-moe-runner-backend speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens
speculative-ngram-external-sam-budget speculative-ngram-match-type speculative-ngram-max-bfs-breadth
speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth speculative-num-draft-tokens speculative-num-steps
speculative-use-block-verification speculative-use-rejection-sampling startup-weight-load-mode
stream-response-default-include-usage strip-thinking-cache swa-full-tokens-ratio swa-prefix-tails
tbo-token-distribution-threshold tensor-parallel-size tokenizer-backend tokenizer-metrics-allowed-custom-labels
tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-worker-num tool-call-parser torch-compile-max-bs tp
tp-size trace-modules triton-attention-num-kv-splits triton-attention-reduce-in-fp32 triton-attention-split-tile-size
uvicorn-access-log-exclude-prefixes warmups watchdog-timeout watermark-config weight-cache-timeout
weight-loader-disable-mmap weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints
weight-loader-prefetch-num-threads weight-version
"""

_VARIABLES = """
SGLANG_SIMULATE_ACC_LEN SGLANG_SIMULATE_ACC_METHOD SGLANG_SIMULATE_ACC_TOKEN_MODE SGLANG_USE_CPU_ENGINE
SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION SGLANG_ENABLE_TORCH_INFERENCE_MODE SGLANG_SORT_WEIGHT_FILES
SGLANG_PREFETCH_BLOCK_SIZE_MB SGLANG_WARMUP_TIMEOUT SGLANG_LOG_GC SGLANG_LOG_MS SGLANG_RECORD_STEP_TIME
SGLANG_INIT_NEW_TOKEN_RATIO SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
SGLANG_RETRACT_DECODE_STEPS SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION SGLANG_EMPTY_CACHE_INTERVAL
SGLANG_SCHEDULER_MAX_RECV_PER_POLL SGLANG_FORCE_STREAM_INTERVAL SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP
SGLANG_ENABLE_DELAY_SAMPLE SGLANG_ENABLE_WAR_BARRIER SGLANG_RADIX_FORCE_MISS SGLANG_EXPERIMENTAL_CPP_RADIX_TREE
SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD SGLANG_MAX_KV_CHUNK_CAPACITY SGLANG_SWA_EVICTION_INTERVAL
SGLANG_NATIVE_MOVE_KV_CACHE SGLANG_USE_HND_KVCACHE SGLANG_ENABLE_POST_CAPTURE_KV_SIZING SGLANG_SYNC_TOKEN_IDS_ACROSS_TP
SGLANG_USE_AITER SGLANG_USE_AITER_AG SGLANG_USE_AITER_UNIFIED_ATTN SGLANG_USE_AITER_FP8_PER_TOKEN
SGLANG_AITER_KV_CACHE_LAYOUT SGLANG_AITER_MLA_GLUON SGLANG_ROCM_FUSED_DECODE_MLA SGLANG_ROCM_USE_MULTI_STREAM
SGLANG_USE_MLX SGLANG_MLX_USE_CUSTOM_ROPE SGLANG_MLX_FUSE_SWIGLU SGLANG_MLX_CLEAR_CACHE_STEPS
SGLANG_MLX_CACHE_LIMIT_GB SGLANG_NPU_USE_MULTI_STREAM SGLANG_NPU_USE_MLAPO
SGLANG_INT4_WEIGHT SGLANG_CPU_QUANTIZATION SGLANG_USE_DYNAMIC_MXFP4_LINEAR SGLANG_FORCE_FP8_MARLIN
SGLANG_MOE_NVFP4_DISPATCH SGLANG_QUANT_ALLOW_DOWNCASTING
SGLANG_DSPARK_FAST_KERNEL SGLANG_DSPARK_FP32_LM_HEAD SGLANG_DSPARK_FAST_SAMPLING SGLANG_DSPARK_FOLDED_SAMPLING
SGLANG_DSPARK_FOLDED_PROPOSAL SGLANG_DSPARK_STACKED_CTX_KV SGLANG_DSPARK_EMBED_IN_GRAPH
SGLANG_DSPARK_ENABLE_MULTI_STREAM SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS
"""
"""Switches, numbers and choices (`sglang/srt/environ.py`); none names a file, a package, a plugin or a host."""

_TARGET = """
kv-cache-dtype quantization tensor-parallel-size tp tp-size pipeline-parallel-size attention-backend
disable-cuda-graph enable-torch-compile chunked-prefill-size max-prefill-tokens page-size sampling-backend
disable-overlap-schedule enable-mixed-chunk device dtype
"""
CHANGES_TARGET = frozenset(_TARGET.split())
"""Types, shapes and places of the target's computation."""
CACHE_TYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1")
"""Of `--kv-cache-dtype` (sglang/srt/server_args.py)."""

OPTIONS = OptionList(
    opens={
        **dict.fromkeys(_CODE.split(), CODE),
        **dict.fromkeys(_NETWORK.split(), NETWORK),
        **dict.fromkeys(_FILES.split(), FILES),
        **dict.fromkeys(
            ("trust-request-chat-template", "trust-mm-content-hashes"), "lets any client hand in more than text"
        ),
    },
    reads=frozenset({"chat-template", "completion-template", "lora-paths", "uno-lora-path"}),
    inline=frozenset({"chat-template", "completion-template"}),
    harmless=frozenset(_HARMLESS.split()),
    abbreviated=True,
    variables=TORCH | frozenset(_VARIABLES.split()),
)

SIMULATED = "simulate-acc-len"
"""Key of a speculation's options that `SGLANG_SIMULATE_ACC_LEN` is set from; only break-even may write it."""
_THRESHOLDS = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")


class SglangSpec(LaunchedEngineSpec):
    """SGLang's server, started for every cell."""

    kind: Literal["sglang"] = Field(description="SGLang's server.")
    dtype: Dtype = Field(default="auto", description="Precision of the weights; auto: the model's own.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Thresholds below which a draft token need not be the target's, and acceptance that is simulated."""
    found = []
    if any(name in _THRESHOLDS and not _is_one(value) for name, value in read_flags(argv)):
        found.append("acceptance threshold")
    if any(name.startswith("SGLANG_SIMULATE_ACC") or name == "SIMULATE_ACC_LEN" for name in env):
        found.append(SYNTHETIC)
    return found


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """The mean acceptance length alone: SGLang takes no rates by position."""
    return [], {SIMULATED: round(1 + sum(rates), 6)}


def _is_one(value: str | None) -> bool:
    try:
        return float(value or "") == 1.0
    except ValueError:
        return False


ADAPTER = Adapter(
    spec=SglangSpec,
    engine="benchctl.engines.sglang.engine:SglangEngine",
    inventory="benchctl.engines.sglang.engine:inventory",
    endpoint="benchctl.engines.sglang.score:FAMILY",
    model_format="huggingface",
    own_methods=True,
    speculation="benchctl.engines.sglang.command:recipe_problems",
    speculation_arguments="benchctl.engines.sglang.command:option_arguments",
    options=OPTIONS,
    lossy=lossy,
    synthetic=synthetic,
    changes_target=CHANGES_TARGET,
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty"}),
    cache_types=CACHE_TYPES,
    remembers=frozenset({"ngram", "ngram-simple"}),  # its n-gram store is one for all requests of a process
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
