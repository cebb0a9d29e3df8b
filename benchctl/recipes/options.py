"""An adapter's lists of its engine's options: those that open the machine, only read a file, or do neither."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

CODE = "runs code"
FILES = "reads or writes files other than the models"
NETWORK = "reaches the network"
CLIENTS = "lets any client hand in more than text"
Words = Mapping[str, tuple[str, ...]]
"""Names by what they have in common."""


def read_words(file: Path) -> Words:
    """Return the names in an engine's TOML file of options: a text of words a key."""
    return {key: tuple(text.split()) for key, text in tomllib.loads(file.read_text("utf-8")).items()}


_PROCESSORS = """
OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_DYNAMIC OMP_WAIT_POLICY OMP_THREAD_LIMIT OMP_STACKSIZE
OMP_MAX_ACTIVE_LEVELS OMP_NESTED GOMP_CPU_AFFINITY GOMP_SPINCOUNT GOMP_STACKSIZE
KMP_AFFINITY KMP_BLOCKTIME KMP_HW_SUBSET MKL_NUM_THREADS MKL_DYNAMIC MKL_CBWR OPENBLAS_NUM_THREADS BLIS_NUM_THREADS
VECLIB_MAXIMUM_THREADS ONEDNN_MAX_CPU_ISA ONEDNN_DEFAULT_FPMATH_MODE
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
CUDA_SCALE_LAUNCH_QUEUES CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL GPU_MAX_HW_QUEUES HSA_OVERRIDE_GFX_VERSION
ZE_AFFINITY_MASK ZES_ENABLE_SYSMAN ONEAPI_DEVICE_SELECTOR UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS
ASCEND_RT_VISIBLE_DEVICES
"""
PROCESSORS = frozenset(_PROCESSORS.split())
"""Variables of threads, devices and the precision of their libraries. None names a file, a library or a host."""
_TORCH = """
PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING ATEN_CPU_CAPABILITY
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE
TOKENIZERS_PARALLELISM RAYON_NUM_THREADS
NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE
"""
TORCH = PROCESSORS | frozenset(_TORCH.split())
"""Those of engines on PyTorch."""


@dataclass(frozen=True)
class OptionList:
    """The known options of an engine, by their long names without dashes."""

    opens: Mapping[str, str] = field(default_factory=dict)
    """Options that open the machine, and how."""
    reads: frozenset[str] = frozenset()
    """Options that read a file, which passes where the file is inside the recipe's folder."""
    inline: frozenset[str] = frozenset()
    """Those of them that also take the text itself, such as a template, in place of the file that holds it."""
    harmless: frozenset[str] = frozenset()
    """Options that were checked and do none of it."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names, with the long name that each stands for."""
    abbreviated: bool = False
    """Whether the engine takes the beginning of an option for the option."""
    variables: frozenset[str] = PROCESSORS
    """Environment variables that a recipe may set; every other variable opens the machine."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of `engine` that open the machine when they are set, and how."""
    speculation: Mapping[str, str] = field(default_factory=dict)
    """Types of `speculation` that open the machine, and how."""

    @classmethod
    def of(cls, words: Words, opens: Mapping[str, str] = MappingProxyType({}), **more: Any) -> OptionList:  # noqa: ANN401 - other fields
        """Return the list of a file: its keys `code`, `network`, `files` and `clients` open the machine.

        `aliases` are `short=long`; `opens`: further ones.
        """
        listed = {"code": CODE, "network": NETWORK, "files": FILES, "clients": CLIENTS}
        of_file = {name: how for key, how in listed.items() for name in words.get(key, ())}
        sets = {key: frozenset(words.get(key, ())) for key in ("reads", "inline", "harmless")}
        aliases = dict(alias.split("=") for alias in words.get("aliases", ()))
        return cls(opens=of_file | {**opens}, aliases=aliases, **{**sets, **more})


Flag = tuple[str, str | None]
"""A flag without dashes, with `-` for `_`, and its value; `None` when it has none."""
IS_OPTION = re.compile(r"--?[A-Za-z]")
"""How an option begins; `-1` is a value."""


def read_flags(argv: Sequence[str]) -> Iterator[Flag]:
    """Yield every flag with the value after `=`, or else with the next word, whatever that is."""
    for place, argument in enumerate(argv):
        if not argument.startswith("-") or argument.lstrip("-")[:1].isdigit():
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        after = argv[place + 1] if place + 1 < len(argv) else None
        yield name.replace("_", "-"), value if equals else after
