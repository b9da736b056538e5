"""Make pages for browsers: the report on a plan, and the viewer that draws it."""
