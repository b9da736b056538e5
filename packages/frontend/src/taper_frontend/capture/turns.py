"""Lock exports of one process against each other where they change torch's global state."""

import threading

#: Held while torch's tables, generator, default dtype or switches are other than the user's.
TORCH = threading.RLock()
