"""Drop-in for Optimum's `ORTModelForCausalLM` that runs fused models.

    from ort_hina import ORTModelForCausalLM

    model = ORTModelForCausalLM.from_pretrained("my-export")
    model.generate(**tokenizer("Hello", return_tensors="pt"))
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

try:
    from optimum.onnxruntime import ORTModelForCausalLM as _OptimumModel
    from optimum.utils.file_utils import find_files_matching_pattern
except ImportError as error:
    raise ImportError(f'ORTModelForCausalLM needs Optimum ({error}): pip install "ort-hina[optimum]"') from error

from .errors import OrtHinaError
from .library import register

_log = logging.getLogger(__name__)

_STANDARD_NAME = "model_hina.onnx"
_FUSED_PATTERN = r"(.*/)?[^/]*_hina\.onnx$"


class ORTModelForCausalLM(_OptimumModel):
    """`optimum.onnxruntime.ORTModelForCausalLM` with the operators of ``ort_hina`` registered.

    `from_pretrained` takes the arguments of Optimum's, and differs in three things:

    - the custom operators are registered on the session options (on yours, if you pass `session_options`);
    - without `file_name`, a fused file (``*_hina.onnx``) is preferred to the file it was made from;
    - the shape of the key/value cache is read from the model. Optimum 0.1.0 computes it from the configuration, and
      is wrong where ``head_dim != hidden_size / num_attention_heads`` (Qwen3-MoE) or for grouped heads of a family
      that it does not list (Mixtral).
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self.can_use_cache:
            self._read_cache_shapes()

    def _read_cache_shapes(self) -> None:
        """Overrides what Optimum computed, wherever the model itself states the dimension as a number.

        A cache input is (batch, key/value heads, past length, head size); older layouts have another rank.
        """
        keys = [name for name in self.key_value_input_names if name.endswith(".key")]
        values = [name for name in self.key_value_input_names if name.endswith(".value")]
        if not keys or not values:
            return
        key, value = self.input_shapes[keys[0]], self.input_shapes[values[0]]
        if len(key) != 4 or len(value) != 4:
            return
        if isinstance(key[1], int):
            self.num_key_value_heads = key[1]
        if isinstance(key[3], int) and isinstance(value[3], int):
            self.embed_size_per_head = self.qk_head_dim = key[3]
            self.v_head_dim = value[3]

    @classmethod
    def _from_pretrained(
        cls,
        model_id: str | Path,
        config: Any,
        *,
        subfolder: str = "",
        revision: str = "main",
        token: bool | str | None = None,
        file_name: str | None = None,
        session_options: onnxruntime.SessionOptions | None = None,
        **arguments: Any,
    ) -> ORTModelForCausalLM:
        if session_options is None:
            session_options = onnxruntime.SessionOptions()
        register(session_options)
        if file_name is None:
            file_name = _fused_file(model_id, subfolder=subfolder, revision=revision, token=token)
        return super()._from_pretrained(
            model_id,
            config,
            subfolder=subfolder,
            revision=revision,
            token=token,
            file_name=file_name,
            session_options=session_options,
            **arguments,
        )

    @staticmethod
    def _cached_file(path_or_repo_id: str | Path, filename: str, **arguments: Any) -> Path:
        """Optimum fetches ``<filename>_data`` from a hub; a fused file names the data file of its source instead."""
        path = _OptimumModel._cached_file(path_or_repo_id, filename, **arguments)
        if not Path(path_or_repo_id).is_dir():
            for location in _data_files(path):
                _OptimumModel._cached_file(path_or_repo_id, location, **arguments)
        return path


def _fused_file(model_id: str | Path, *, subfolder: str, revision: str, token: bool | str | None) -> str | None:
    """The name of the fused file among the files of the model, or None (with a warning) if there is none.

    Raises:
        OrtHinaError: there are several, and none has the standard name.
    """
    files = find_files_matching_pattern(
        model_id, _FUSED_PATTERN, glob_pattern="**/*.onnx", subfolder=subfolder, revision=revision, token=token
    )
    names = sorted({file.name for file in files})
    if not names:
        _log.warning(
            "no fused model (*_hina.onnx) in %s: the model runs as it was exported; fuse it with `ort-hina fuse`",
            model_id,
        )
        return None
    if _STANDARD_NAME in names:
        return _STANDARD_NAME
    if len(names) > 1:
        raise OrtHinaError(f"several fused models in {model_id}: {', '.join(names)}; choose one with file_name")
    return names[0]


def _data_files(path: Path) -> list[str]:
    """The names of the external data files of an ONNX file, without reading them."""
    model = onnx.load(path, load_external_data=False)
    entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    return sorted({entry.value for entry in entries if entry.key == "location"})
