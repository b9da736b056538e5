"""Make pages that a browser shows: the report on a plan, and the viewer that draws it."""
