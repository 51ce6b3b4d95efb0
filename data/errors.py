"""The one error that data on disk can cause."""


class DataError(ValueError):
    """Data that cannot be used as they are; the message names the file or folder, the key, the value and the rule."""
