"""What the options of `vllm serve` do to the machine (vLLM 0.32)."""

from __future__ import annotations

from benchctl.recipes.options import CODE, FILES, NETWORK, OptionList

_HARMLESS = """
seed hf-overrides load-format model-impl block-size gpu-memory-utilization kv-cache-memory-bytes swap-space
cpu-offload-gb num-gpu-blocks-override kv-cache-dtype quantization enforce-eager max-num-batched-tokens max-num-seqs
max-model-len enable-chunked-prefill scheduling-policy async-scheduling max-num-partial-prefills
max-long-partial-prefills long-prefill-token-threshold disable-cascade-attn disable-sliding-window
tensor-parallel-size pipeline-parallel-size data-parallel-size tp pp dp max-parallel-loading-workers
disable-custom-all-reduce enable-expert-parallel attention-backend compilation-config cudagraph-capture-sizes
cuda-graph-sizes max-cudagraph-capture-size optimization-level O cc dtype tokenizer-mode skip-tokenizer-init
generation-config override-generation-config chat-template-content-format response-role reasoning-parser
tool-call-parser enable-auto-tool-choice max-logprobs logprobs-mode disable-log-requests enable-log-requests
uvicorn-log-level mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size limit-mm-per-prompt language-model-only
enable-prompt-tokens-details disable-log-stats disable-uvicorn-access-log safetensors-load-strategy
"""

OPTIONS = OptionList(
    opens={
        **dict.fromkeys(("trust-remote-code", "worker-cls", "worker-extension-cls", "scheduler-cls"), CODE),
        **dict.fromkeys(("tool-parser-plugin", "reasoning-parser-plugin", "middleware", "io-processor-plugin"), CODE),
        **dict.fromkeys(("logits-processors", "distributed-executor-backend", "executor-class"), CODE),
        **dict.fromkeys(("model-loader-extra-config", "additional-config"), CODE),
        **dict.fromkeys(
            ("kv-transfer-config", "ec-transfer-config", "kv-events-config", "weight-transfer-config"), NETWORK
        ),
        **dict.fromkeys(
            ("otlp-traces-endpoint", "allowed-media-domains", "master-addr", "master-port", "nnodes"), NETWORK
        ),
        **dict.fromkeys(("data-parallel-address", "data-parallel-rpc-port", "allowed-origins", "hf-token"), NETWORK),
        **dict.fromkeys(("allow-credentials", "allowed-headers", "allowed-methods", "enable-ssl-refresh"), NETWORK),
        **dict.fromkeys(("allowed-local-media-path", "download-dir", "hf-config-path", "tokenizer", "config"), FILES),
        **dict.fromkeys(("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "log-config-file", "profiler-config"), FILES),
        **dict.fromkeys(("default-mm-loras", "lora-modules", "uds", "tool-server", "kv-offloading-backend"), FILES),
        "enable-server-load-tracking": "changes what is served",
    },
    reads=frozenset({"chat-template"}),
    harmless=frozenset(_HARMLESS.split()),
    abbreviated=True,
    variables={
        r"VLLM_(?:PLUGINS|ALLOW_.*|SERVER_DEV_MODE|USE_MODELSCOPE|.*PLUGIN.*|LOGGING_CONFIG_PATH)": CODE,
        r"VLLM_(?:CONFIG_ROOT|CACHE_ROOT|ASSETS_CACHE|.*_DIR|.*_PATH)": FILES,
        r"VLLM_(?:HOST_IP|DP_MASTER_.*|.*_URL|.*_ENDPOINT|S3_.*)": NETWORK,
        r"TORCHINDUCTOR_.*|TORCH_EXTENSIONS_DIR|TORCH_(?:TRACE|LOGS_OUT)|TRITON_.*(?:DIR|PATH)": CODE,
    },
    words={"custom_class": CODE, "code_revision": CODE, "draft_load_config": CODE},
)
