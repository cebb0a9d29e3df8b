"""The bundled models by name, one module an architecture.

`BUILDERS` maps a name to a function from vocabulary size to an untrained transformers model. The model's class also
loads its checkpoints, so that a further architecture is a module and an entry here.
"""

from collections.abc import Callable

from transformers import PreTrainedModel

from training.architectures.falcon_h1 import parallel_hybrid
from training.architectures.qwen3 import transformer

BUILDERS: dict[str, Callable[[int], PreTrainedModel]] = {
    "tiny-hybrid": lambda size: parallel_hybrid(size, hidden=256, feed_forward=512, layers=4, heads=4, kv_heads=2),
    "tiny-hybrid-draft": lambda size: parallel_hybrid(
        size, hidden=128, feed_forward=256, layers=2, heads=2, kv_heads=1
    ),
    "tiny-transformer": lambda size: transformer(size, hidden=256, feed_forward=512, layers=4, heads=4, kv_heads=2),
}
