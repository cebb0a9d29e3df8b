"""What the options of SGLang's server do to the machine (SGLang 0.5)."""

from __future__ import annotations

from benchctl.recipes.options import CODE, FILES, NETWORK, OptionList

_HARMLESS = """
mem-fraction-static max-total-tokens chunked-prefill-size max-prefill-tokens page-size schedule-policy
schedule-conservativeness kv-cache-dtype quantization tensor-parallel-size tp tp-size pipeline-parallel-size
attention-backend sampling-backend grammar-backend disable-cuda-graph cuda-graph-max-bs cuda-graph-bs
disable-overlap-schedule enable-mixed-chunk enable-torch-compile torch-compile-max-bs log-level log-level-http
decode-log-interval disable-custom-all-reduce triton-attention-num-kv-splits num-continuous-decode-steps
reasoning-parser tool-call-parser max-running-requests context-length random-seed device dtype
speculative-accept-threshold-single speculative-accept-threshold-acc speculative-token-map disable-radix-cache
skip-server-warmup warmups
"""

OPTIONS = OptionList(
    opens={
        **dict.fromkeys(("trust-remote-code", "custom-sigquit-handler", "enable-custom-logit-processor"), CODE),
        **dict.fromkeys(("json-model-override-args", "model-loader-extra-config"), CODE),
        **dict.fromkeys(("forward-hooks", "custom-weight-loader", "remote-instance-weight-loader-seed"), CODE),
        **dict.fromkeys(
            ("dist-init-addr", "nccl-init-addr", "nnodes", "otlp-traces-endpoint", "kv-events-config"), NETWORK
        ),
        **dict.fromkeys(
            ("disaggregation-mode", "hicache-storage-backend", "enable-trace", "collect-tokens-histogram"), NETWORK
        ),
        **dict.fromkeys(
            ("download-dir", "file-storage-path", "lora-paths", "crash-dump-folder", "dump-requests-folder"), FILES
        ),
        **dict.fromkeys(("log-requests-target", "tokenizer-path", "export-metrics-to-file-dir", "config"), FILES),
    },
    reads=frozenset({"chat-template", "completion-template"}),
    harmless=frozenset(_HARMLESS.split()),
    abbreviated=True,
    variables={
        r"SGLANG_(?:EXTERNAL_.*|.*PLUGIN.*|ALLOW_.*|.*_MODULE)": CODE,
        r"SGLANG_.*(?:_DIR|_PATH|_FOLDER)": FILES,
        r"SGLANG_.*(?:_HOST|_URL|_ENDPOINT|_IP)|SGLANG_USE_MODELSCOPE": NETWORK,
        r"TORCHINDUCTOR_.*|TORCH_EXTENSIONS_DIR|TORCH_(?:TRACE|LOGS_OUT)|TRITON_.*(?:DIR|PATH)": CODE,
    },
)
