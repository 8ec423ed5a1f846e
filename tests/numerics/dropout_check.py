"""What mask does the dropout cell draw? Writes masks for some keys to the file named first."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor

from workers.dropout import HashDropout


def main() -> None:
    """Draw masks as a compiled graph does, the key written in place after the compile."""
    ms.set_context(mode=ms.GRAPH_MODE)
    cell = HashDropout(0.25, 0).set_train()
    ones = Tensor(np.ones((100, 1000), np.float32))
    cell(ones)
    masks = []
    for key in (0, 1, -5, 2**31 - 1):
        cell.key.asnumpy()[...] = key
        masks.append(cell(ones).asnumpy() > 0)
    cell.set_train(False)
    np.savez(sys.argv[1], masks=np.array(masks), scale=np.float32(cell.scale), outside=cell(ones).asnumpy())


if __name__ == "__main__":
    main()
