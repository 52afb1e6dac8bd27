"""``python -m mesh`` is ``mesh``."""

from mesh.cli.program import main

if __name__ == "__main__":
    main()
