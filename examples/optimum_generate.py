"""Text generation with Optimum's interface, prompts of different lengths in one batch.

    python examples/optimum_generate.py my-export 64 "The capital of France is" "Once upon a time"

`my-export` is the folder of `optimum-cli export onnx`, after `ort-hina fuse my-export/model.onnx`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoTokenizer

from ort_hina import ORTModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an export with a fused model")
    parser.add_argument("tokens", type=int, help="how many to write, at most")
    parser.add_argument("prompts", nargs="+")
    arguments = parser.parse_args()

    # The new tokens follow the prompt, so shorter prompts are padded at their left.
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = ORTModelForCausalLM.from_pretrained(arguments.folder)
    inputs = tokenizer(arguments.prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    ids = model.generate(**inputs, max_new_tokens=arguments.tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    for text in tokenizer.batch_decode(ids, skip_special_tokens=True):
        print(text)


if __name__ == "__main__":
    main()
