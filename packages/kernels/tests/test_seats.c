/* Joining another thread's work, and when the pool's owner shares its own. */
#include "check.h"
#include "host.h"
#include "os/os.h"
#include "run/thread_pool.h"

enum { MS = 1000000 };

static taper_seats fresh(void) { return (taper_seats){.word = 0}; }

static void only_those_invited_join(void) {
    taper_seats s = fresh();
    CHECK(!taper_seats_join(&s, 1, 0), "not open");
    taper_seats_open(&s, 4, 2);
    CHECK(!taper_seats_join(&s, 4, 0), "worker 4 of 4");
    CHECK(taper_seats_join(&s, 3, 0) && taper_seats_join(&s, 1, 0), "two seats");
    CHECK(!taper_seats_free(&s, 2, 0) && !taper_seats_join(&s, 2, 0), "no third seat");
    taper_seats_leave(&s);
    CHECK(!taper_seats_join(&s, 2, 0), "a seat is taken once");
    taper_seats_leave(&s);
    CHECK(!taper_seats_close(&s), "all have left: no wait");
    CHECK(!taper_seats_join(&s, 2, 0), "closed");
}

static void nobody_joins_twice(void) {
    taper_seats s = fresh();
    uint32_t last = 0;
    for (int i = 0; i < 3; i++) {
        taper_seats_open(&s, 3, 2);
        const uint32_t number = taper_seats_join(&s, 1, last);
        CHECK(number && number != last, "time %d", i);
        last = number;
        CHECK(!taper_seats_free(&s, 1, last) && !taper_seats_join(&s, 1, last), "again");
        taper_seats_leave(&s);
        taper_seats_close(&s);
    }
    atomic_store(&s.word, (uint64_t)UINT32_MAX << 32); /* the largest number is the latest */
    taper_seats_open(&s, 3, 2);
    CHECK(taper_seats_join(&s, 1, UINT32_MAX) == 1, "0 stands for none");
}

/* Whoever does not come is not waited for: this would not end. */
static void closes_without_those_who_do_not_come(void) {
    taper_seats s = fresh();
    for (int i = 0; i < 1000; i++) {
        taper_seats_open(&s, 8, 7);
        CHECK(!taper_seats_close(&s), "time %d", i);
    }
}

typedef struct late_helper {
    taper_seats seats;
    _Atomic int32_t joined, done;
    int64_t ns; /* for which it works */
} late_helper;

static void help_late(void *it) {
    late_helper *h = it;
    CHECK(taper_seats_join(&h->seats, 1, 0), "join");
    atomic_store(&h->joined, 1);
    for (const int64_t until = taper_os_now() + h->ns; taper_os_now() < until;)
        taper_os_yield();
    atomic_store(&h->done, 1);
    taper_seats_leave(&h->seats);
}

/* The owner waits for who has joined: it spins, then sleeps. */
static void waits_for_those_who_have_joined(void) {
    for (int i = 0; i < 20; i++) {
        late_helper h = {.seats = fresh(), .ns = i % 2 ? 3 * MS : MS / 50};
        taper_seats_open(&h.seats, 2, 1);
        host_thread *other = host_start(help_late, &h);
        while (!atomic_load(&h.joined))
            taper_os_yield();
        taper_seats_close(&h.seats);
        CHECK(atomic_load(&h.done), "time %d: closed before the helper has left", i);
        host_join(other);
    }
}

/* Computes alone until sharing pays again; returns for how many ms. */
static int alone_ms(void) {
    int ms = 0;
    for (; !taper_pool_pays() && ms < 1000000; ms++)
        taper_pool_computed_alone(MS);
    return ms;
}

static void owner_computes_alone_after_losses(void) {
    taper_pool_judge(100 * MS, 0, false); /* full credit */
    CHECK(taper_pool_pays(), "after a gain");
    taper_pool_judge(0, MS, false);
    CHECK(taper_pool_pays(), "a loss that the gain pays for");
    taper_pool_judge(0, 10 * MS, false);
    const int first = alone_ms();
    CHECK(first >= 20, "%d ms alone after a loss", first);
    taper_pool_judge(MS, 0, false);
    taper_pool_judge(0, 10 * MS, false);
    const int second = alone_ms();
    CHECK(second > first, "%d ms alone, then %d", first, second);
    int longest = 0;
    for (int i = 0; i < 20; i++) {
        taper_pool_judge(0, 10 * MS, false);
        longest = alone_ms();
    }
    CHECK(longest > second && longest < 10000, "%d ms alone after 10 ms", longest);
    taper_pool_judge(10 * MS, 0, false);
    taper_pool_judge(0, 20 * MS, false);
    CHECK(alone_ms() >= longest, "a short gain changes nothing");
    for (int i = 0; i < 5; i++)
        taper_pool_judge(1000 * MS, 0, false);
    taper_pool_judge(0, 10 * MS, false);
    CHECK(alone_ms() == first, "after a long gain a pause is as long as the first");
    taper_pool_judge(1000 * MS, 0, false);
}

static void stops_of_the_whole_process_are_no_losses(void) {
    taper_pool_judge(0, 75 * MS, true);
    CHECK(taper_pool_pays(), "the system had stopped the owner, too");
    for (int i = 0; i < 2; i++)
        taper_pool_judge(0, 3 * MS, true);
    CHECK(!taper_pool_pays(), "a worker was put aside");
    (void)alone_ms();
    taper_pool_judge(0, 75 * MS, false);
    CHECK(!taper_pool_pays(), "nothing stops the owner");
    (void)alone_ms();
    taper_pool_judge(1000 * MS, 0, false);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"only_those_invited_join", only_those_invited_join},
        {"nobody_joins_twice", nobody_joins_twice},
        {"closes_without_those_who_do_not_come", closes_without_those_who_do_not_come},
        {"waits_for_those_who_have_joined", waits_for_those_who_have_joined},
        {"owner_computes_alone_after_losses", owner_computes_alone_after_losses},
        {"stops_of_the_whole_process_are_no_losses", stops_of_the_whole_process_are_no_losses},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
