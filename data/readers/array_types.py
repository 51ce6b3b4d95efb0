"""Short names of numpy's types, for signatures."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Booleans = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Texts = NDArray[np.str_]
Shape = tuple[int, ...]
"""(C, H, W) of an image, (F,) of a vector."""
