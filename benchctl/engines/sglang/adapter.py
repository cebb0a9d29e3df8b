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
base-gpu-id cpu-offload-gb cuda-graph-bs-decode cuda-graph-max-bs-decode data-parallel-size decode-attention-backend
disable-cuda-graph-padding disable-custom-all-reduce dp-size enable-deterministic-inference enable-dp-attention
enable-fp32-lm-head enable-metrics enable-multi-layer-eagle enable-p2p-check ep-size expert-parallel-size
fp8-gemm-backend gpu-id-step grammar-backend linear-attn-backend load-format log-level log-level-http log-requests
log-requests-level mamba-backend mamba-full-memory-ratio mamba-ssm-dtype max-mamba-cache-size max-total-tokens
mem-fraction-static model-impl moe-a2a-backend moe-runner-backend num-continuous-decode-steps pp-size
prefill-attention-backend prefill-max-requests reasoning-parser sampling-defaults schedule-conservativeness
schedule-policy skip-server-warmup tokenizer-mode tool-call-parser torch-compile-max-bs watchdog-timeout
speculative-accept-threshold-acc speculative-accept-threshold-single speculative-adaptive speculative-attention-mode
speculative-dflash-block-size speculative-domino-candidate-pool-size speculative-draft-attention-backend
speculative-draft-kv-cache-dtype speculative-draft-load-format speculative-draft-model-quantization
speculative-draft-model-revision speculative-draft-sink-size speculative-draft-window-size speculative-dsa-topk-backend
speculative-dspark-align-verify-tokens-to-graph-tier speculative-dspark-block-size speculative-eagle-topk
speculative-enable-w4a4-mxfp4-megamoe speculative-moe-a2a-backend speculative-moe-runner-backend
speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens speculative-ngram-external-sam-budget
speculative-ngram-match-type speculative-ngram-max-bfs-breadth speculative-ngram-max-trie-depth
speculative-ngram-min-bfs-breadth speculative-num-draft-tokens speculative-num-steps speculative-use-block-verification
speculative-use-rejection-sampling
"""
"""Those that measurements set, beside `CHANGES_TARGET`; another, of which the package has 400, is said in the plan."""

_VARIABLES = """
SGLANG_SIMULATE_ACC_LEN SGLANG_SIMULATE_ACC_METHOD SGLANG_SIMULATE_ACC_TOKEN_MODE SGLANG_USE_CPU_ENGINE
SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION SGLANG_WARMUP_TIMEOUT SGLANG_RADIX_FORCE_MISS SGLANG_USE_AITER
SGLANG_USE_MLX SGLANG_FORCE_FP8_MARLIN SGLANG_CPU_QUANTIZATION SGLANG_DSPARK_FAST_KERNEL SGLANG_DSPARK_FAST_SAMPLING
"""
"""Switches, numbers and choices (`sglang/srt/environ.py`); none names a file, a package, a plugin or a host."""

_TARGET = """
kv-cache-dtype quantization tensor-parallel-size tp-size pipeline-parallel-size attention-backend disable-cuda-graph
enable-torch-compile chunked-prefill-size max-prefill-tokens page-size sampling-backend disable-overlap-schedule
enable-mixed-chunk device dtype
"""
CHANGES_TARGET = frozenset(_TARGET.split()) | {"tp"}
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
    harmless=frozenset((_HARMLESS + _TARGET).split()),
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
    endpoint="benchctl.engines.sglang.engine:FAMILY",
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
    remembers=frozenset({"ngram", "ngram-simple"}),  # its n-gram store is shared by all requests of a process
    example=("# dtype: bfloat16        # precision of the weights; left out: the model's own",),
)
