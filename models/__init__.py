"""MoE families: configurations, small random models, and their export with Optimum.

Everything here needs the ``optimum`` extra (``pip install "ort-hina[optimum]"``). Importing this package alone does
not: torch and transformers are imported when a function first needs them.
"""
