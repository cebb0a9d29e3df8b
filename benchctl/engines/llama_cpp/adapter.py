"""llama.cpp's llama-server, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from benchctl.recipes.adapters import SYNTHETIC, Adapter
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.flags import read_flags
from benchctl.recipes.options import CODE, FILES, NETWORK, OptionList

_DEFAULTS = (
    *("embd-gemma-default", "fim-qwen-1.5b-default", "fim-qwen-3b-default", "fim-qwen-7b-default", "fim-qwen-7b-spec"),
    *("fim-qwen-14b-spec", "fim-qwen-30b-default", "gpt-oss-20b-default", "gpt-oss-120b-default"),
    *("vision-gemma-4b-default", "vision-gemma-12b-default"),
)
"""Each names a model that is downloaded."""
_HARMLESS = """
threads threads-batch cpu-mask cpu-range cpu-strict prio poll cpu-mask-batch cpu-range-batch cpu-strict-batch
prio-batch poll-batch ctx-size predict n-predict batch-size ubatch-size keep swa-full flash-attn perf escape
rope-scaling rope-scale rope-freq-base rope-freq-scale yarn-orig-ctx yarn-ext-factor yarn-attn-factor yarn-beta-slow
yarn-beta-fast kv-offload repack no-host cache-type-k cache-type-v defrag-thold load-mode lazy-mode mmap mlock
direct-io numa device override-tensor cpu-moe n-cpu-moe n-cpu-ffn gpu-layers n-gpu-layers split-mode tensor-split
main-gpu fit fit-target fit-ctx check-tensors override-kv op-offload control-vector-layer-range offline verbose
log-verbose verbosity log-verbosity log-prefix log-timestamps samplers seed sampler-seq sampling-seq ignore-eos temp
temperature top-k top-p min-p top-nsigma top-n-sigma xtc-probability xtc-threshold typical typical-p repeat-last-n
repeat-penalty presence-penalty frequency-penalty dry-multiplier dry-base dry-allowed-length dry-penalty-last-n
dry-sequence-breaker adaptive-target adaptive-decay dynatemp-range dynatemp-exp mirostat mirostat-lr mirostat-ent
logit-bias grammar json-schema backend-sampling spec-draft-threads threads-draft spec-draft-threads-batch
threads-batch-draft spec-draft-cpu-mask spec-draft-cpu-range spec-draft-cpu-strict spec-draft-prio spec-draft-poll
spec-draft-override-tensor spec-draft-cpu-moe spec-draft-n-cpu-moe spec-draft-ngl gpu-layers-draft n-gpu-layers-draft
spec-draft-device device-draft spec-draft-type-k cache-type-k-draft spec-draft-type-v cache-type-v-draft
spec-draft-p-split draft-p-split spec-draft-backend-sampling spec-synth-len spec-synth-rates kv-unified
kv-unified-per-slot ctx-checkpoints swa-checkpoints checkpoint-min-step cache-ram cache-idle-slots context-shift
reverse-prompt special warmup spm-infill pooling parallel cont-batching mmproj-auto mmproj-offload mmproj-device
image-min-tokens image-max-tokens mtmd-batch-max-tokens video-fps video-timestamp-interval alias tags embd-normalize
ui webui timeout sse-ping-interval threads-http cache-prompt cache-reuse metrics slots jinja reasoning-format
reasoning reasoning-effort reasoning-budget reasoning-budget-message reasoning-preserve chat-template
chat-template-kwargs skip-chat-parsing prefill-assistant slot-prompt-similarity lora-init-without-apply
sleep-idle-seconds models-max models-autoload t tb C Cr Cb Crb c n b ub fa e kvo nkvo nr ctk ctv dt lm lzm dev ot cmoe
ncmoe ncffn ngl sm ts mg fitt fitc v lv s l j bs td tbd Cd Crd Cbd otd cmoed ncmoed devd ngld ctkd ctvd ctxcp cms cram
kvu r sp np cb nocb mmdev a to rea sps spec-draft-cpu-strict-batch spec-draft-prio-batch spec-draft-poll-batch
spec-draft-cpu-mask-batch
"""

_TARGET = """
cache-type-k cache-type-v flash-attn batch-size ubatch-size threads-batch rope-scaling rope-scale rope-freq-base
rope-freq-scale yarn-orig-ctx yarn-ext-factor yarn-attn-factor yarn-beta-slow yarn-beta-fast swa-full kv-offload repack
no-host op-offload override-kv override-tensor cpu-moe n-cpu-moe n-cpu-ffn gpu-layers split-mode tensor-split main-gpu
device kv-unified lora lora-scaled control-vector control-vector-scaled control-vector-layer-range
"""
CHANGES_TARGET = frozenset(_TARGET.split())
"""Types, shapes and places of the target's computation, and what is added to its weights."""
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Of `--cache-type-k` (common/arg.cpp, kv_cache_types)."""

OPTIONS = OptionList(
    opens={
        **dict.fromkeys(("tools", "tools-runtime", "agent"), CODE),
        **dict.fromkeys(("mcp-servers-config", "mcp-servers-json", "video-ffmpeg-dir"), CODE),
        **dict.fromkeys(
            ("rpc", "ui-mcp-proxy", "mmproj-url", "model-url", "hf-repo", "hf-repo-v", "hf-token"), NETWORK
        ),
        **dict.fromkeys(
            ("docker-repo", "spec-draft-hf", "cors-origins", "cors-credentials", "host", *_DEFAULTS), NETWORK
        ),
        **dict.fromkeys(("cors-methods", "cors-headers"), NETWORK),
        **dict.fromkeys(("path", "media-path", "slot-save-path", "log-prompts-dir", "log-file", "models-dir"), FILES),
        **dict.fromkeys(("lookup-cache-static", "lookup-cache-dynamic", "models-preset", "ui-config-file"), FILES),
        **dict.fromkeys(("mmproj", "model-vocoder", "api-key-file", "ssl-key-file", "ssl-cert-file"), FILES),
        "ui-config": "changes what its web page does",
        "props": "lets any client change its settings",
    },
    reads=frozenset(
        {"lora", "lora-scaled", "control-vector", "control-vector-scaled", "grammar-file", "json-schema-file"}
        | {"chat-template-file"}
    ),
    harmless=frozenset(_HARMLESS.split()),
    aliases={
        **{"ctk": "cache-type-k", "ctv": "cache-type-v", "fa": "flash-attn", "b": "batch-size", "ub": "ubatch-size"},
        **{"ngl": "gpu-layers", "n-gpu-layers": "gpu-layers", "sm": "split-mode", "ts": "tensor-split"},
        **{"mg": "main-gpu", "dev": "device", "ot": "override-tensor", "cmoe": "cpu-moe", "ncmoe": "n-cpu-moe"},
        **{"ncffn": "n-cpu-ffn", "kvo": "kv-offload", "nkvo": "no-kv-offload", "nr": "no-repack"},
        **{"kvu": "kv-unified", "tb": "threads-batch"},
        **{"ag": "agent", "mm": "mmproj", "mmu": "mmproj-url", "mu": "model-url", "dr": "docker-repo"},
        **{"hf": "hf-repo", "hfr": "hf-repo", "hft": "hf-token", "hfv": "hf-repo-v", "hfd": "spec-draft-hf"},
        **{"hfrd": "spec-draft-hf", "hf-repo-draft": "spec-draft-hf", "hff": "hf-repo", "hf-file": "hf-repo"},
        **{
            "lcs": "lookup-cache-static",
            "lcd": "lookup-cache-dynamic",
            "jf": "json-schema-file",
            "mv": "model-vocoder",
        },
        **{"webui-mcp-proxy": "ui-mcp-proxy", "webui-config-file": "ui-config-file", "webui-config": "ui-config"},
    },
    variables={r"LLAMA_(?:ARG|API)_.*": "sets an option that the recipe does not show", r"GGML_RPC.*": NETWORK},
)


class LlamaCppSpec(LaunchedEngineSpec):
    """llama.cpp's llama-server, started for every cell."""

    kind: Literal["llama.cpp"] = Field(default="llama.cpp", description="llama.cpp's llama-server.")


def lossy(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A synthetic acceptance accepts draft tokens that the target would not generate."""
    named = {name for name, _ in read_flags(argv)} & {"spec-synth-len", "spec-synth-rates"}
    if named or {"LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"} & set(env):
        return [SYNTHETIC]
    return []


def synthetic(rates: Sequence[float]) -> tuple[list[str], dict[str, object]]:
    """Rates by position, unconditional."""
    return ["--spec-synth-rates", ",".join(f"{rate:.6g}" for rate in rates)], {}


ADAPTER = Adapter(
    spec=LlamaCppSpec,
    engine="benchctl.engines.llama_cpp.engine:LlamaCppEngine",
    inventory="benchctl.engines.llama_cpp.find:inventory",
    endpoint="benchctl.engines.llama_cpp.endpoint:FAMILY",
    doctor="benchctl.engines.llama_cpp.installer:check",
    installer="benchctl.engines.llama_cpp.installer:LlamaCppInstaller",
    model_format="gguf",
    interleaves=True,
    quantizes=True,
    options=OPTIONS,
    lossy=lossy,
    synthetic=synthetic,
    truncates_first=True,
    changes_target=CHANGES_TARGET,
    cache_types=CACHE_TYPES,
    draft_cache_types=True,
    # One cache and one hash table for all requests; the maps keep keys, and how they fared, of earlier prompts' starts.
    remembers=frozenset({"ngram-cache", "ngram-mod", "ngram-map-k", "ngram-map-k4v"}),
    example=(
        "# binary: llama-server   # a path or a name; else the environment, PATH, then benchctl's own build",
        '# args: ["--flash-attn", "on"]   # passed through as they are',
    ),
)
