"""All of dist_ops.py, ddp.py and sharded.py in one run: PyTorch takes seconds to import.

ringctl run -n 4 -- python tests/torch_distributed/everything.py
"""

import ddp
import dist_ops
import sharded
import support

if __name__ == "__main__":
    support.run(*dist_ops.CHECKS, *ddp.CHECKS, *sharded.CHECKS)
