"""The keeper's process."""

import sys

from mesh.keeper.server import main

main(*sys.argv[1:])
