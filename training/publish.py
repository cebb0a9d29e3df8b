"""Export both models of the hybrid pair into `benchctl/models/bundled/` and write `index.json` beside them.

python -m training.publish --runs FOLDER --tokenizer FOLDER --output benchctl/models/bundled [--rounded FOLDER]
"""

import argparse
import hashlib
import json
from pathlib import Path

from training.export import write_gguf, write_rounded

# name -> (folder of the run, role)
MODELS: dict[str, tuple[str, str]] = {"tiny-hybrid": ("target", "target"), "tiny-hybrid-draft": ("draft", "draft")}
DESCRIPTION = "A tiny model for trying benchctl; it knows templates only and has had no safety training."


def main() -> None:
    """Export and index the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder with one run folder a model")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounded", type=Path, help="also write Hugging Face folders with the exported values here")
    options = parser.parse_args()
    index_file = options.output / "index.json"
    index: dict[str, dict[str, object]] = json.loads(index_file.read_text("utf-8")) if index_file.exists() else {}
    for name, (run, role) in MODELS.items():
        checkpoint, target = options.runs / run / "checkpoint", options.output / f"{name}.gguf"
        parameters = write_gguf(checkpoint, options.tokenizer, name, DESCRIPTION, target)
        if options.rounded:
            write_rounded(checkpoint, options.tokenizer, options.rounded / name)
        index[name] = {
            "file": target.name,
            "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
            "bytes": target.stat().st_size,
            "role": role,
            "architecture": "falcon-h1",
            "parameters": parameters,
            "licence": "Apache-2.0",
        }
    fresh = index_file.with_suffix(".new")
    fresh.write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    fresh.replace(index_file)
    print(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
