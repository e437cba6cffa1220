"""``ort-hina demo``: a Qwen3-MoE with random weights, exported, fused, and run three ways.

- `run`: all of it, in order;
- `build`: makes the model, exports it with Optimum, fuses it;
- `worker`: runs one of the three in a process of its own, and measures (this file imports nothing, so that the process
  holds only what it measures);
- `report`: the table, and whether the three wrote the same text.
"""
