"""Every `engine.kind` that a recipe may say and where its adapter is: a further engine is one line of this table.

It stands below everything else because the recipe's schema takes its words from here; nothing is imported until
`benchctl.engines.registry` makes an engine.
"""

from __future__ import annotations

from collections.abc import Mapping

ADAPTERS: dict[str, str] = {
    "llama.cpp": "benchctl.engines.llama_cpp.engine:LlamaCppEngine",
    "vllm": "benchctl.engines.vllm.engine:VllmEngine",
    "sglang": "benchctl.engines.sglang.engine:SglangEngine",
    "transformers": "",
    "openai": "benchctl.engines.openai.engine:OpenAiEngine",
}
"""Kind to `module:class`; the class is called with the recipe's EngineSpec and `binary=`. An empty place is a word that
recipes may say and this version does not run."""


def runnable(adapters: Mapping[str, str] = ADAPTERS) -> list[str]:
    """Return the kinds that this version runs."""
    return sorted(kind for kind, place in adapters.items() if place)
