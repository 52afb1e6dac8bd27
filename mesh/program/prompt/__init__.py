"""`mesh repl`: one prompt for all ranks. The lines of the user become cells, which every rank runs in its process."""
