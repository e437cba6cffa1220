"""``ort-hina matrix``: exports of every family, fused, and each held against its own file and against PyTorch."""
