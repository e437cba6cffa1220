"""Recognising and rewriting mixtures of experts in ONNX graphs: one fusion per file, listed in `pipeline`."""
