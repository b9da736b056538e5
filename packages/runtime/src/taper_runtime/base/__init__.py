"""Hold what every other room needs: dtypes, errors, sizes, limits and checks of fields."""
