"""One script an engine, each run by the interpreter of its own environment: so they import nothing of Pagoda's."""
