"""The smallest ringd program: every rank contributes an array and gets the sum.

    ringctl run -n 2 -- python examples/numpy_allreduce.py

Each rank prints what it gave and got.
"""

import numpy as np
import ringd

ringd.init()
mine = np.full(4, ringd.rank() + 1.0)
total = ringd.allreduce(mine, op=ringd.Sum)
print(f"rank {ringd.rank()} of {ringd.size()}: {mine} -> {total}")
ringd.shutdown()
