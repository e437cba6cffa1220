"""Errors that a user can act on."""


class OrtHinaError(Exception):
    """Something about the input or the installation: the message says what, where, and what was expected."""
