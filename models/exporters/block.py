"""`torch.onnx.export` of one MoE block alone, for families whose whole model no exporter takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..random_model import random_model
from .dtypes import TORCH_NAMES

if TYPE_CHECKING:
    from torch import Tensor, nn

# Class names of the blocks, in both versions of transformers.
_BLOCK = re.compile(r"(SparseMoeBlock|MoE|Moe|MoEV1Moe|DbrxFFN|GptOssMLP)$")
_BATCH, _LENGTH = 2, 16


def export(
    name: str,
    directory: Path,
    *,
    opset: int | None = None,
    dtype: str = "fp32",
    dynamo: bool = False,
    seed: int = 0,
) -> Path:
    """Exports the last MoE block of the random model `name` to ``directory/model.onnx``.

    Input ``hidden_states`` (B, S, H), output ``output`` of the same shape; B and S are dynamic.

    Args:
        name: a variant.
        directory: must exist.
        opset: None takes the exporter's default.
        dtype: a key of `dtypes.TORCH_NAMES`.
        dynamo: which of torch's two exporters. The newer one needs transformers 5, whose experts can be computed
            without loops.
        seed: of the sample input.

    Raises:
        ValueError: the model has no block that is known here.
    """
    import torch

    loading = {"experts_implementation": "batched_mm"} if dynamo else {}
    model = random_model(name, dtype=TORCH_NAMES[dtype], **loading)
    block, hidden_size = moe_block(model), model.get_input_embeddings().embedding_dim
    sample = torch.randn(_BATCH, _LENGTH, hidden_size, generator=torch.Generator().manual_seed(seed))
    file = directory / "model.onnx"
    axes = {0: "batch", 1: "length"}
    with torch.no_grad():
        torch.onnx.export(
            _first_output(block),
            (sample.to(model.dtype),),
            str(file),
            input_names=["hidden_states"],
            output_names=["output"],
            dynamo=dynamo,
            verbose=False,
            **({} if opset is None else {"opset_version": opset}),
            **(
                {"dynamic_shapes": [dict.fromkeys(axes, torch.export.Dim.DYNAMIC)]}
                if dynamo
                else {"dynamic_axes": {"hidden_states": axes, "output": axes}}
            ),
        )
    return file


def moe_block(model: nn.Module) -> nn.Module:
    """The last MoE block of `model`.

    Raises:
        ValueError: there is none that is known here.
    """
    blocks = [module for module in model.modules() if _BLOCK.search(type(module).__name__)]
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no mixture-of-experts block that is known here")
    return blocks[-1]


def _first_output(block: nn.Module) -> Any:
    """`block` without the router's logits, which some families return as well."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, hidden_states: Tensor) -> Tensor:
            answer = self.block(hidden_states)
            return answer[0] if isinstance(answer, tuple) else answer

    return First()
