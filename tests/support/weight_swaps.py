"""Weights that are swapped while threads run."""

import threading


def seen_during_swaps(session, sets, run, threads=8, swaps=200):
    """The results of ``run``, of all ``threads``, while ``sets`` of weights take turns."""
    seen, errors, stop = set(), [], threading.Event()

    def serve():
        try:
            while not stop.is_set():
                seen.add(run())
        except Exception as error:
            errors.append(error)

    running = [threading.Thread(target=serve) for _ in range(threads)]
    for thread in running:
        thread.start()
    for i in range(swaps):
        session.weights.load(sets[i % len(sets)])
        session.weights.commit()
    stop.set()
    for thread in running:
        thread.join()
    assert not errors
    return seen
