"""Export with Optimum's own `main_export`, in this process and without the network."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MODEL, _DATA = "model.onnx", "model.onnx_data"


def export_directory(
    source: Path,
    output: Path,
    *,
    opset: int | None = None,
    dtype: str = "fp32",
    external: bool = True,
    custom: bool = False,
    seed: int = 0,
) -> Path:
    """Exports the transformers model saved in `source` to `output`, as ``optimum-cli export onnx`` does.

    Args:
        source: a folder that ``save_pretrained`` wrote.
        output: the folder to write to; created if missing. An earlier export in it is replaced.
        opset: ONNX opset; None takes Optimum's default for the model type.
        dtype: ``fp32``, ``fp16`` or ``bf16``: the type that the model is loaded in.
        external: put every weight into ``model.onnx_data``; otherwise they are inline, as Optimum does below 2 GB.
        custom: pass a configuration of our own (`custom_configs`), for a model type that Optimum does not know.
        seed: of the dummy inputs that Optimum draws. Some models lose what these do not reach.

    Returns:
        The path of ``model.onnx``.

    Raises:
        ValueError: Optimum does not know the model type (its own message).
    """
    from optimum.exporters.onnx import main_export

    from .custom_configs import custom_onnx_config

    configs = None
    if custom:
        from transformers import AutoConfig

        configs = {"model": custom_onnx_config(AutoConfig.from_pretrained(source, local_files_only=True))}
    for name in (_MODEL, _DATA):  # a data file that exists would be appended to
        (output / name).unlink(missing_ok=True)
    with _forced_external_data(external), _quiet(), _seeded(seed):
        main_export(
            str(source),
            output=str(output),
            task="text-generation-with-past",
            opset=opset,
            dtype=dtype,
            framework="pt",
            library_name="transformers",
            local_files_only=True,
            # Optimum's check runs the model again in PyTorch and in ONNX Runtime; the callers compare far more.
            do_validation=False,
            custom_onnx_configs=configs,
        )
    return output / _MODEL


@contextmanager
def _forced_external_data(external: bool) -> Iterator[None]:
    """Optimum reads this variable at each export; there is no argument for it."""
    name = "FORCE_ONNX_EXTERNAL_DATA"
    before = os.environ.get(name)
    os.environ[name] = "1" if external else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Optimum draws tokens with torch, and how much of them is padding with Python."""
    import torch

    before = random.getstate()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            random.seed(seed)
            yield
    finally:
        random.setstate(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Tracing warns at every Python value that it freezes: thousands of lines that a user can do nothing about."""
    from optimum.utils import logging as optimum_logging
    from transformers.utils import logging as transformers_logging

    before = [(library, library.get_verbosity()) for library in (optimum_logging, transformers_logging)]
    for library, _ in before:
        library.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for library, verbosity in before:
            library.set_verbosity(verbosity)
