"""Write the mean of the weights of two models, such as one and what a longer run has made of it, which reads better than both.

python -m scripts.tiny_vision.mean outlines_cont/models/tiny_vision scratch/longer/model --output scratch/mean
"""

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def main() -> None:
    """Read the command line and write a folder that `models.transformers` opens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs=2, help="folders of models of one architecture")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of the mean; other files are those of the second"
    )
    args = parser.parse_args()
    first, second = (load_file(folder / "model.safetensors") for folder in args.models)
    if first.keys() != second.keys():
        raise SystemExit("expected two models of one architecture, got different names of weights")
    mean = {name: first[name].float().lerp(second[name].float(), 0.5).to(second[name].dtype) for name in second}
    shutil.copytree(args.models[1], args.output, dirs_exist_ok=True)
    save_file(mean, args.output / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
