"""Export trained models into `benchctl/models/bundled/` and write `index.json` beside them.

python -m training.publish --runs FOLDER --tokenizer FOLDER --output benchctl/models/bundled [--rounded FOLDER]
    [--model NAME ...]
"""

import argparse
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchctl.models.huggingface.folder import huggingface_folder
from training.export import write_gguf


@dataclass(frozen=True)
class Published:
    """A bundled model: the folder of its run, what it is for, and llama.cpp's name of its architecture."""

    run: str
    role: str
    architecture: str


MODELS: dict[str, Published] = {
    "tiny-hybrid": Published("target", "target", "falcon-h1"),
    "tiny-hybrid-draft": Published("draft", "draft", "falcon-h1"),
    "tiny-transformer": Published("transformer", "target", "qwen3"),
    "tiny-sequential": Published("sequential", "target", "qwen35"),
    "tiny-sequential-eagle3": Published("eagle3", "draft-eagle3", "eagle3"),
}
DESCRIPTION = "A tiny model for trying benchctl; it knows templates only and has had no safety training."


def main() -> None:
    """Export and index the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder with one run folder a model")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounded", type=Path, help="also write Hugging Face folders with the exported values here")
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="only this one; may be repeated")
    options = parser.parse_args()
    index_file = options.output / "index.json"
    index: dict[str, dict[str, object]] = json.loads(index_file.read_text("utf-8")) if index_file.exists() else {}
    for name in options.model or MODELS:
        model = MODELS[name]
        checkpoint, target = options.runs / model.run / "checkpoint", options.output / f"{name}.gguf"
        parameters = write_gguf(checkpoint, options.tokenizer, name, DESCRIPTION, target)
        settings = options.output / "huggingface"  # of the folders that are made of the files elsewhere
        shutil.copyfile(checkpoint / "config.json", settings / f"{name}.config.json")
        for shared in ("tokenizer.json", "chat_template.jinja"):
            shutil.copyfile(options.tokenizer / shared, settings / shared)
        if options.rounded:
            shutil.copytree(huggingface_folder(target), options.rounded / name, dirs_exist_ok=True)
        index[name] = {
            "file": target.name,
            "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
            "bytes": target.stat().st_size,
            "role": model.role,
            "architecture": model.architecture,
            "parameters": parameters,
            "licence": "Apache-2.0",
        }
    fresh = index_file.with_suffix(".new")
    fresh.write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    fresh.replace(index_file)
    print(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
