"""Files that only their owner may read: scores, weights, patients' images."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Create files as 0600 and folders as 0700 within this context.

    The file mode mask belongs to the whole process, so files that other threads create meanwhile are closed too.
    """
    before = os.umask(0o077)
    os.umask(before | 0o077)  # a mask that closes more than this one stays as it is
    try:
        yield
    finally:
        os.umask(before)
