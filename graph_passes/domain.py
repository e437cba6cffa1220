"""The domain of the project's own operators."""

DOMAIN = "ort_hina"
OPSET = 1
