"""``ort-hina bench``: the operators on cold weights, beside what the machine can do at most, measured in the same run."""
