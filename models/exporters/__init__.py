"""Exporters, one file each: what people use to write MoE models as ONNX files. `table` lists them.

The modules import with transformers 4 and with transformers 5; each runs with the version that `table` says.
"""
