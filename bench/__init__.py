"""Measurements from the source tree: sessions, large graphs, the AMX cost model. `ort-hina bench` measures the operators."""
