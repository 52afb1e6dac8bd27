"""mesh with beats every 5 ms: an afternoon's worth of them in a minute. ``python -m benchmarks.hurried run ...``"""

from __future__ import annotations

from mesh.__main__ import main
from mesh.engine import launcher

if __name__ == "__main__":
    launcher.BEAT = 0.005
    main()
