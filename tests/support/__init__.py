"""What several tests share: element types, guarded memory, one-node MoE models and their float64 reference."""
