"""Lock exports of one process against each other while they change torch's global state."""

import threading

#: Held while torch's tables, generator, default dtype or switches differ from the user's.
TORCH = threading.RLock()
