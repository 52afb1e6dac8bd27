"""The command line: Invoke tasks that parse, call one function of ``mesh.api``, and exit."""
