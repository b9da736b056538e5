"""Define the plan: the frozen plain data that the frontend gives to the runtime."""
