"""Hold a plan: what the frontend hands to the runtime, as frozen plain data."""
