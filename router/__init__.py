"""The gateway."""

import os

# Before anything imports numpy: its BLAS would start a thread for each core and let them spin.
# Nothing here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
