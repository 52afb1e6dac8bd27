"""Pages about runs: events, folded output, stacks and timeline as values, and a run as one HTML file."""
