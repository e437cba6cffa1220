"""Names of element types as the exporters' users write them, and torch's names for them."""

TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
