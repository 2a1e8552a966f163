"""edgerelax: compile a model once, with symbolic shapes, and run it anywhere."""
