"""The version of this package, as installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ort-hina")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"
