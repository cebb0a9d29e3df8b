"""llama.cpp's llama-server, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.options import CODE, FILES, NETWORK, PROCESSORS, OptionList, read_flags

_CODE = """
tools tools-runtime agent mcp-servers-config mcp-servers-json video-ffmpeg-dir sqlite-zstd-ext-file
"""
_NETWORK = """
rpc ui-mcp-proxy mmproj-url model-url hf-repo hf-repo-v hf-token docker-repo spec-draft-hf cors-origins
cors-credentials host cors-methods cors-headers
embd-gemma-default fim-qwen-1.5b-default fim-qwen-3b-default fim-qwen-7b-default fim-qwen-7b-spec fim-qwen-14b-spec
fim-qwen-30b-default gpt-oss-20b-default gpt-oss-120b-default vision-gemma-4b-default vision-gemma-12b-default
"""
"""The last, from `embd-gemma-default` on, each name a model that is downloaded."""
_FILES = """
path media-path slot-save-path log-prompts-dir log-file models-dir lookup-cache-static lookup-cache-dynamic
models-preset ui-config-file mmproj model-vocoder api-key-file ssl-key-file ssl-cert-file sql-save-file logdir file
in-file binary-file system-prompt-file prompt-cache output output-file context-file banned-string-file
"""
_READS = "chat-template-file control-vector control-vector-scaled grammar-file json-schema-file lora lora-scaled"
_ALIASES = """
ctk=cache-type-k ctv=cache-type-v fa=flash-attn b=batch-size ub=ubatch-size ngl=gpu-layers n-gpu-layers=gpu-layers
sm=split-mode ts=tensor-split mg=main-gpu dev=device ot=override-tensor cmoe=cpu-moe ncmoe=n-cpu-moe ncffn=n-cpu-ffn
kvo=kv-offload nkvo=no-kv-offload nr=no-repack kvu=kv-unified tb=threads-batch ag=agent mm=mmproj mmu=mmproj-url
mu=model-url dr=docker-repo hf=hf-repo hfr=hf-repo hft=hf-token hfv=hf-repo-v hfd=spec-draft-hf hfrd=spec-draft-hf
hf-repo-draft=spec-draft-hf hff=hf-repo hf-file=hf-repo lcs=lookup-cache-static lcd=lookup-cache-dynamic
jf=json-schema-file mv=model-vocoder ld=logdir f=file bf=binary-file spf=system-prompt-file
webui-mcp-proxy=ui-mcp-proxy webui-config-file=ui-config-file webui-config=ui-config
"""
"""Of these, and of those that change the target, with the long name of each."""
_HARMLESS = """
threads cpu-mask cpu-range cpu-strict prio poll cpu-mask-batch cpu-range-batch cpu-strict-batch prio-batch poll-batch
ctx-size keep perf escape defrag-thold load-mode lazy-mode mmap mlock direct-io numa fit fit-target fit-ctx
check-tensors offline verbose log-verbose verbosity log-verbosity log-prefix log-timestamps spec-draft-threads
threads-draft spec-draft-threads-batch threads-batch-draft spec-draft-cpu-mask spec-draft-cpu-range
spec-draft-cpu-strict spec-draft-prio spec-draft-poll spec-draft-override-tensor spec-draft-cpu-moe
spec-draft-n-cpu-moe spec-draft-ngl gpu-layers-draft n-gpu-layers-draft spec-draft-device device-draft
spec-draft-type-k cache-type-k-draft spec-draft-type-v cache-type-v-draft spec-draft-p-split draft-p-split
spec-draft-backend-sampling spec-synth-len spec-synth-rates kv-unified-per-slot ctx-checkpoints swa-checkpoints
checkpoint-min-step cache-ram cache-idle-slots warmup spm-infill pooling parallel cont-batching mmproj-auto
mmproj-offload mmproj-device image-min-tokens image-max-tokens mtmd-batch-max-tokens video-fps
video-timestamp-interval alias tags embd-normalize ui webui timeout sse-ping-interval threads-http cache-prompt
cache-reuse metrics slots reasoning-format reasoning reasoning-effort reasoning-budget reasoning-budget-message
reasoning-preserve skip-chat-parsing prefill-assistant slot-prompt-similarity lora-init-without-apply
sleep-idle-seconds models-max models-autoload t C Cr Cb Crb c e dt lm lzm fitt fitc v lv td tbd Cd Crd Cbd otd cmoed
ncmoed devd ngld ctkd ctvd ctxcp cms cram np cb nocb mmdev a to rea sps spec-draft-cpu-strict-batch
spec-draft-prio-batch spec-draft-poll-batch spec-draft-cpu-mask-batch
"""
"""Beside those of `CHANGES_TARGET` and `STATED`."""

_VARIABLES = """
LLAMA_TRACE
GGML_OP_OFFLOAD_MIN_BATCH GGML_SCHED_DEBUG GGML_NO_BACKTRACE GGML_CPU_DISABLE_FUSION GGML_CPU_TILED_MM
GGML_CPU_TILED_MM_FORCE GGML_KLEIDIAI_SME GGML_KLEIDIAI_CHUNK_MULTIPLIER GGML_TOTAL_THREADS
GGML_CUDA_DEVICES GGML_CUDA_ALLREDUCE GGML_CUDA_CUBLAS_COMPUTE_TYPE GGML_CUDA_DISABLE_FUSION GGML_CUDA_DISABLE_GRAPHS
GGML_CUDA_ENABLE_UNIFIED_MEMORY GGML_CUDA_GRAPH_OPT GGML_CUDA_MMQ_PREC GGML_CUDA_NO_PINNED GGML_CUDA_P2P GGML_CUDA_PDL
GGML_CUDA_REGISTER_HOST
GGML_DISABLE_VULKAN GGML_VK_VISIBLE_DEVICES GGML_VK_ALLOW_GRAPHICS_QUEUE GGML_VK_ALLOW_SYSMEM_FALLBACK
GGML_VK_ASYNC_USE_TRANSFER_QUEUE GGML_VK_DISABLE_ASYNC GGML_VK_DISABLE_BFLOAT16 GGML_VK_DISABLE_COOPMAT
GGML_VK_DISABLE_COOPMAT2 GGML_VK_DISABLE_COOPMAT2_DECODE_VECTOR GGML_VK_DISABLE_DESCRIPTOR_REUSE GGML_VK_DISABLE_DOT2
GGML_VK_DISABLE_F16 GGML_VK_DISABLE_FUSION GGML_VK_DISABLE_GRAPH_OPTIMIZE GGML_VK_DISABLE_HOST_VISIBLE_VIDMEM
GGML_VK_DISABLE_INTEGER_DOT_PRODUCT GGML_VK_DISABLE_MMVQ GGML_VK_DISABLE_MULTI_ADD GGML_VK_DISABLE_OCP_FP4
GGML_VK_ENABLE_MEMORY_PRIORITY GGML_VK_FA_SPARSE_DISABLE GGML_VK_FORCE_MAX_ALLOCATION_SIZE
GGML_VK_FORCE_MAX_BUFFER_SIZE GGML_VK_FORCE_MMVQ GGML_VK_MAX_NODES_PER_SUBMIT GGML_VK_PERF_LOGGER
GGML_VK_PREFER_HOST_MEMORY GGML_VK_SERIALIZE_SUBMISSIONS GGML_VK_SUBALLOCATION_BLOCK_SIZE
GGML_METAL_BF16_DISABLE GGML_METAL_CONCURRENCY_DISABLE GGML_METAL_DEVICES GGML_METAL_FUSION_DISABLE
GGML_METAL_GRAPH_OPTIMIZE_DISABLE GGML_METAL_NO_RESIDENCY GGML_METAL_RESIDENCY_KEEP_ALIVE_S
GGML_METAL_SHARED_BUFFERS_DISABLE GGML_METAL_SHARED_BUFFERS_ENABLE GGML_METAL_TENSOR_DISABLE GGML_METAL_TENSOR_ENABLE
GGML_SYCL_DEV2DEV_MEMCPY GGML_SYCL_ENABLE_DNN GGML_SYCL_ENABLE_ESIMD GGML_SYCL_ENABLE_FLASH_ATTN
GGML_SYCL_ENABLE_FUSION GGML_SYCL_ENABLE_GRAPH GGML_SYCL_ENABLE_HOST_PINNED_MEM GGML_SYCL_ENABLE_MKL_FA
GGML_SYCL_ENABLE_OPT GGML_SYCL_ENABLE_VMM GGML_SYCL_FA_ONEDNN GGML_SYCL_FA_ONEDNN_MAX_KV GGML_SYCL_GET_MEM_API
GGML_SYCL_HOST_PINNED_MEM_2G GGML_SYCL_NO_PINNED GGML_SYCL_PRIORITIZE_DMMV GGML_SYCL_SPARSE_FA
GGML_SYCL_USE_ASYNC_MEM_OP GGML_SYCL_USE_LEVEL_ZERO_API GGML_SYCL_USM_SYSTEM
GGML_OPENCL_DEVICE GGML_OPENCL_DISABLE_FUSION GGML_OPENCL_ADRENO_USE_LARGE_BUFFER
GGML_CANN_ACL_GRAPH GGML_CANN_DISABLE_BUF_POOL_CLEAN GGML_CANN_GRAPH_CACHE_CAPACITY GGML_CANN_MEM_POOL
GGML_CANN_NO_PINNED GGML_CANN_OPERATOR_FUSION GGML_CANN_PREFILL_USE_GRAPH GGML_CANN_WEIGHT_NZ
LLAMA_ATTN_ROT_DISABLE LLAMA_GRAPH_REUSE_DISABLE
"""
"""Switches and numbers that ggml and llama.cpp read (`getenv`); none names a file, a library or a host."""

_TARGET = """
cache-type-k cache-type-v flash-attn batch-size ubatch-size threads-batch rope-scaling rope-scale rope-freq-base
rope-freq-scale yarn-orig-ctx yarn-ext-factor yarn-attn-factor yarn-beta-slow yarn-beta-fast swa-full kv-offload repack
no-host op-offload override-kv override-tensor cpu-moe n-cpu-moe n-cpu-ffn gpu-layers split-mode tensor-split main-gpu
device kv-unified lora lora-scaled control-vector control-vector-scaled control-vector-layer-range
ignore-eos logit-bias l grammar grammar-file json-schema json-schema-file j reverse-prompt r special sp context-shift
backend-sampling bs mirostat mirostat-lr mirostat-ent dynatemp-range dynatemp-exp
chat-template chat-template-file chat-template-kwargs jinja
mla-use mla attention-max-batch amb fused-moe fmoe grouped-expert-routing ger smart-expert-reduction ser
run-time-repack rtr merge-qkv mqkv k-cache-hadamard khad v-cache-hadamard vhad graph-reuse gr
"""
CHANGES_TARGET = frozenset(_TARGET.split())
"""Types, shapes and places of the target's computation, what is added to its weights, and what is sampled of it."""
_STATED = """
temp temperature top-k top-p min-p seed s samplers sampler-seq sampling-seq predict n-predict n repeat-last-n
repeat-penalty presence-penalty frequency-penalty dry-multiplier dry-base dry-allowed-length dry-penalty-last-n
dry-sequence-breaker xtc-probability xtc-threshold typical typical-p top-nsigma top-n-sigma adaptive-target
adaptive-decay
"""
STATED = frozenset(_STATED.split())
"""What `completion_body` states: values, or a chain of samplers that has none of these. Held against build 0c1e570 at
temperatures 0 and 0.9: no answer changed."""
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Of `--cache-type-k` (common/arg.cpp, kv_cache_types)."""

OPTIONS = OptionList(
    opens={
        **dict.fromkeys(_CODE.split(), CODE),
        **dict.fromkeys(_NETWORK.split(), NETWORK),
        **dict.fromkeys(_FILES.split(), FILES),
        "draft-params": "may set any option of the draft's",
        "ui-config": "changes what its web page does",
        "props": "lets any client change its settings",
    },
    reads=frozenset(_READS.split()),
    harmless=(CHANGES_TARGET | STATED | set(_HARMLESS.split())) - set(_READS.split()),
    aliases=dict(alias.split("=") for alias in _ALIASES.split()),
    variables=PROCESSORS | frozenset(_VARIABLES.split()),
)
"""Of llama.cpp and of ik_llama.cpp (common/common.cpp of ik-llama-cpp-python 0.1.5)."""


class LlamaCppSpec(LaunchedEngineSpec):
    """llama.cpp's llama-server, started for every cell."""

    kind: Literal["llama.cpp"] = Field(default="llama.cpp", description="llama.cpp's llama-server.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A synthetic acceptance accepts draft tokens that the target would not generate."""
    variables = (name.removeprefix("LLAMA_ARG_").lower().replace("_", "-") for name in env)
    named = {*variables, *(name for name, _ in read_flags(argv))}
    return [SYNTHETIC] if named & {"spec-synth-len", "spec-synth-rates"} else []


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """Rates by position, unconditional."""
    return ["--spec-synth-rates", ",".join(f"{rate:.6g}" for rate in rates)], {}


ADAPTER = Adapter(
    spec=LlamaCppSpec,
    engine="benchctl.engines.llama_cpp.engine:LlamaCppEngine",
    inventory="benchctl.engines.llama_cpp.installation:inventory",
    endpoint="benchctl.engines.llama_cpp.score:FAMILY",
    doctor="benchctl.engines.llama_cpp.installation:check",
    installer="benchctl.engines.llama_cpp.installation:LlamaCppInstaller",
    model_format="gguf",
    own_methods=True,
    lists_types=True,
    speculation_arguments="benchctl.engines.llama_cpp.spec_flags:option_arguments",
    interleaves=True,
    quantizes=True,
    options=OPTIONS,
    lossy=lossy,
    synthetic=synthetic,
    truncates_first=True,
    changes_target=CHANGES_TARGET,
    stated=STATED,
    sampling=frozenset({"repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar"}),
    scored=frozenset({"presence_penalty", "frequency_penalty", "logit_bias"}),
    cache_types=CACHE_TYPES,
    draft_cache_types=True,
    # One cache and one hash table for all requests; the maps keep keys, and how they fared, of earlier prompts' starts.
    remembers=frozenset({"ngram-cache", "ngram-mod", "ngram-map-k", "ngram-map-k4v"}),
    example=(
        "# binary: llama-server   # a path or a name; else the environment, PATH, then benchctl's own build",
        '# args: ["--flash-attn", "on"]   # passed through as they are',
    ),
)
