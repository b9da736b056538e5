"""Let exports take turns where they change what torch has once for the whole process."""

import threading

#: Held while torch's tables, generator, default dtype or switches are other than the user's.
TORCH = threading.RLock()
