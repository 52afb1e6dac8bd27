"""Assembly: builds the launcher, screen and run directory of a run. Concrete classes meet here and nowhere else."""
