"""Open plans and run them: sessions, their options, weights, states and values."""
