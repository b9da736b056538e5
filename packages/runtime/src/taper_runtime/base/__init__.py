"""Hold what every other room needs: dtypes, errors, sizes, limits and checks of fields."""

VERSION = "0.1.0"  #: Of the package and its kernels.
