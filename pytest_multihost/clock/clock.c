/* The clock of a world, for every caller of the C library in its processes.
 *
 * The dynamic linker loads a preloaded library (LD_PRELOAD, ld.so(8)) before all others, so calls of
 * clock_gettime(), poll(), pthread_cond_timedwait(), ... from Python and from C++ libraries alike
 * resolve to the functions below. All processes of a world map one page (page.py, struct page). Its
 * `offset` is how far the world's clocks are ahead of the machine's. The controller increases it: the
 * clock jumps. Every thread has a slot in the page, in which it says until when it waits, so that the
 * controller knows the earliest of all timers, and whom to wake after a jump.
 *
 * A thread that waits is woken in one of two ways. A wait that a signal interrupts gets one from the
 * controller (tgkill(2)); its handler does nothing but say so (`nudged`). The wait then ends as by its
 * timeout if it is due, and else goes on; the caller never sees EINTR. Waits for a condition variable
 * cannot be interrupted. For them each process has a thread of its own, which sleeps on the word
 * `jumps` of the page, and broadcasts the variables whose waits are due. A spurious wakeup is allowed
 * there, so nobody else is harmed.
 *
 * A wakeup may come too early, before the thread has fallen asleep. So the controller, and the thread
 * for condition variables, repeat it until the slot says that the wait has ended.
 *
 * Without a page a call costs a load and a branch. On the path of a wait nothing is allocated.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 8192, HEADER = 4096 };
enum { SLEEP = 1, POLL, EPOLL, SEMAPHORE, CONDITION, FUTEX, MUTEX, SIGNAL, SOCKET, TIMER, HELPER };
enum { LOOP = 1, IDLE = 2 }; /* of slot.flags */
enum { FREE = 0, WAITS = 1, IS_WOKEN = 2 }; /* of slot.lock */

#define MAGIC "MHCLOCK1"
#define SECOND 1000000000ll
#define GIL_NS 6000000ll /* Python asks for the GIL every 5 ms: no timer of the program's */
#define LOOP_NS 100000000ll
#define AGAIN_NS 1000000ll

struct slot {
  _Atomic uint32_t tid;
  uint32_t pid;
  _Atomic int64_t due; /* the world's monotonic time, 0 in no timed wait */
  int64_t timeout;
  uint32_t kind;
  _Atomic uint32_t serial;
  uint32_t rounds, flags;
  _Atomic uint32_t lock;
  uint32_t reserved;
  void *object;
  uint64_t spare;
};

struct page {
  char magic[8];
  _Atomic int64_t offset;
  _Atomic uint32_t jumps; /* condition threads sleep on it */
  _Atomic uint32_t is_jumping;
  uint32_t signal;
  _Atomic uint32_t used; /* slots that have ever been used: the first so many */
  _Atomic uint32_t doubts;
  char reserved[HEADER - 36];
  struct slot slots[SLOTS];
};

static _Atomic(struct page *) current;
static _Atomic uint32_t helper_of; /* the process whose condition thread has been started */
static pthread_key_t leaving;

#define LOCAL static __thread __attribute__((tls_model("initial-exec")))
LOCAL struct slot *mine;
LOCAL volatile sig_atomic_t nudged;
LOCAL const void *last_caller;
LOCAL int last_is_loop;

static void *find(_Atomic(void *) *slot, const char *name, const char *version) {
  void *found = atomic_load_explicit(slot, memory_order_relaxed);
  if (!found) {
    found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    if (!found) found = dlsym(RTLD_NEXT, name);
    atomic_store_explicit(slot, found, memory_order_relaxed);
  }
  return found;
}

#define BEHIND(name) static _Atomic(void *) behind_##name;
#define REAL(name) ((__typeof__(&name))find(&behind_##name, #name, NULL))
/* The unversioned lookup may find the condition variables of before glibc 2.3.2. */
#define REAL_CONDITION(name) ((__typeof__(&name))find(&behind_##name, #name, "GLIBC_2.3.2"))

static inline struct page *attached(void) {
  return atomic_load_explicit(&current, memory_order_relaxed);
}

/* -- Time -- */

BEHIND(clock_gettime)
BEHIND(syscall)

static int64_t nanoseconds(const struct timespec *time) {
  return (int64_t)time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec timespec_of(int64_t ns) {
  if (ns < 0) ns = 0;
  return (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)};
}

static int64_t machine_ns(clockid_t clock) {
  struct timespec now;
  REAL(clock_gettime)(clock, &now);
  return nanoseconds(&now);
}

static int64_t offset_of(struct page *page) { return atomic_load(&page->offset); }

static int64_t world_ns(struct page *page) { return machine_ns(CLOCK_MONOTONIC) + offset_of(page); }

static int is_of_world(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW ||
         clock == CLOCK_REALTIME_COARSE || clock == CLOCK_MONOTONIC_COARSE ||
         clock == CLOCK_BOOTTIME || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  struct page *page = attached();
  int failed = REAL(clock_gettime)(clock, time);
  if (!page || failed || !time || !is_of_world(clock)) return failed;
  *time = timespec_of(nanoseconds(time) + offset_of(page));
  return 0;
}

BEHIND(gettimeofday)
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  struct page *page = attached();
  if (!page || !time) return REAL(gettimeofday)(time, zone);
  int64_t now = machine_ns(CLOCK_REALTIME) + offset_of(page);
  *time = (struct timeval){(time_t)(now / SECOND), (suseconds_t)(now % SECOND / 1000)};
  return 0;
}

BEHIND(time)
time_t time(time_t *seconds) {
  struct page *page = attached();
  if (!page) return REAL(time)(seconds);
  time_t now = (time_t)((machine_ns(CLOCK_REALTIME) + offset_of(page)) / SECOND);
  if (seconds) *seconds = now;
  return now;
}

BEHIND(timespec_get)
int timespec_get(struct timespec *time, int base) {
  struct page *page = attached();
  int found = REAL(timespec_get)(time, base);
  if (page && found == TIME_UTC) *time = timespec_of(nanoseconds(time) + offset_of(page));
  return found;
}

/* -- Signals -- */

static void nudge(int number) {
  (void)number;
  nudged = 1;
}

static void unblock(struct page *page) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, (int)page->signal);
  REAL(syscall)(SYS_rt_sigprocmask, SIG_UNBLOCK, &set, NULL, _NSIG / 8);
}

/* Return the mask without the signal of the clock, in `copy` if it must be changed. */
static const sigset_t *without(struct page *page, const sigset_t *mask, sigset_t *copy) {
  if (!mask || !page || sigismember(mask, (int)page->signal) != 1) return mask;
  *copy = *mask;
  sigdelset(copy, (int)page->signal);
  return copy;
}

BEHIND(pthread_sigmask)
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
  sigset_t copy;
  if (how != SIG_UNBLOCK) set = without(attached(), set, &copy);
  return REAL(pthread_sigmask)(how, set, old);
}

BEHIND(sigprocmask)
int sigprocmask(int how, const sigset_t *restrict set, sigset_t *restrict old) {
  sigset_t copy;
  if (how != SIG_UNBLOCK) set = without(attached(), set, &copy);
  return REAL(sigprocmask)(how, set, old);
}

/* -- Slots -- */

static uint32_t thread_id(void) { return (uint32_t)REAL(syscall)(SYS_gettid); }

static void leave(void *slot) {
  struct slot *left = slot;
  atomic_store(&left->due, 0);
  atomic_store(&left->tid, 0);
  mine = NULL;
}

static struct slot *claim(struct page *page) {
  uint32_t tid = thread_id();
  for (uint32_t i = 0; i < SLOTS; i++) {
    struct slot *slot = &page->slots[i];
    uint32_t nobody = 0;
    if (atomic_load_explicit(&slot->tid, memory_order_relaxed)) continue;
    if (!atomic_compare_exchange_strong(&slot->tid, &nobody, tid)) continue;
    atomic_store(&slot->due, 0);
    slot->pid = (uint32_t)getpid();
    slot->timeout = 0;
    slot->kind = slot->rounds = slot->flags = 0;
    atomic_store(&slot->lock, FREE);
    uint32_t used = atomic_load(&page->used);
    while (used < i + 1 && !atomic_compare_exchange_weak(&page->used, &used, i + 1)) {}
    unblock(page);
    pthread_setspecific(leaving, slot);
    return slot;
  }
  return NULL;
}

/* Whether a call comes from the library of a runtime. A caller is looked up once in a row. */
static int is_of_runtime(const void *caller) {
  static const char *const names[] = {"libtorch", "libc10", "libgloo", "libjax", "xla_extension",
                                      "libgrpc"};
  Dl_info found;
  if (caller == last_caller) return last_is_loop;
  int is_loop = 0;
  if (dladdr(caller, &found) && found.dli_fname) {
    const char *slash = strrchr(found.dli_fname, '/');
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
      is_loop |= strstr(slash ? slash : found.dli_fname, names[i]) != NULL;
  }
  last_caller = caller;
  return last_is_loop = is_loop;
}

/* Whether this is a worker of gRPC's thread pool, or the thread that starts these. Without work they
   wait ever longer, up to 3 s, and are woken when there is some. */
static int is_of_pool(void) {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  return !strcmp(name, "event_engine") || !strcmp(name, "lifeguard");
}

static int is_alike(int64_t one, int64_t other) {
  int64_t apart = one > other ? one - other : other - one;
  return apart <= other / 16 + 100000;
}

/* Say in the page that a wait begins. NULL: there is no room, and its timer is the machine's. */
static struct slot *begin_wait(struct page *page, uint32_t kind, int64_t due, void *object,
                               const void *caller) {
  int kept = errno;
  if (!mine) mine = claim(page);
  struct slot *slot = mine;
  if (!slot) return NULL;
  int64_t timeout = due - world_ns(page);
  int is_loop = (kind == EPOLL || kind == POLL) && timeout <= LOOP_NS && is_of_runtime(caller);
  uint32_t flags = is_loop ? LOOP : kind == FUTEX && is_of_pool() ? IDLE : 0;
  if (slot->kind != kind || slot->flags != flags || !is_alike(timeout, slot->timeout)) {
    slot->rounds = 0;
    slot->timeout = timeout;
  }
  slot->kind = kind;
  slot->flags = flags;
  slot->object = object;
  if (kind == CONDITION) atomic_store(&slot->lock, WAITS);
  atomic_fetch_add(&slot->serial, 1);
  atomic_store(&slot->due, due);
  errno = kept;
  return slot;
}

static void end_wait(struct slot *slot, int has_timed_out) {
  if (!slot) return;
  atomic_store(&slot->due, 0);
  slot->rounds = has_timed_out ? slot->rounds + 1 : 0;
  if (slot->kind != CONDITION) return;
  for (uint32_t waits = WAITS; !atomic_compare_exchange_weak(&slot->lock, &waits, FREE);
       waits = WAITS) {
    if (waits == FREE) return;
  }
}

/* The world's time at which a wait until `at` on `clock` ends, and with an offset of 0 the machine's. */
static int64_t monotonic_ns(struct page *page, clockid_t clock, int64_t at) {
  if (clock == CLOCK_MONOTONIC) return at;
  return at - machine_ns(clock) - offset_of(page) + world_ns(page);
}

/* -- Sleeps -- */

BEHIND(clock_nanosleep)
static int sleep_until(struct page *page, int64_t due, const void *caller) {
  struct slot *slot = begin_wait(page, SLEEP, due, NULL, caller);
  int error;
  for (;;) {
    struct timespec at = timespec_of(due - offset_of(page));
    nudged = 0;
    error = world_ns(page) < due
                ? REAL(clock_nanosleep)(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) : 0;
    if (error != EINTR) break;
    int was_nudged = nudged;
    if (was_nudged && world_ns(page) < due) continue;
    if (was_nudged) error = 0;
    break;
  }
  end_wait(slot, !error);
  return error;
}

static int64_t left_of(struct page *page, int64_t due) {
  int64_t left = due - world_ns(page);
  return left > 0 ? left : 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *asked,
                    struct timespec *rest) {
  struct page *page = attached();
  int is_valid = asked && asked->tv_nsec >= 0 && asked->tv_nsec < SECOND && asked->tv_sec >= 0;
  if (!page || !is_of_world(clock) || !is_valid)
    return REAL(clock_nanosleep)(clock, flags, asked, rest);
  int64_t at = nanoseconds(asked);
  int is_absolute = (flags & TIMER_ABSTIME) != 0;
  int64_t due = is_absolute ? monotonic_ns(page, clock, at) : world_ns(page) + at;
  int error = sleep_until(page, due, __builtin_return_address(0));
  if (error == EINTR && rest && !is_absolute) *rest = timespec_of(left_of(page, due));
  return error;
}

BEHIND(nanosleep)
int nanosleep(const struct timespec *asked, struct timespec *rest) {
  if (!attached()) return REAL(nanosleep)(asked, rest);
  int error = clock_nanosleep(CLOCK_MONOTONIC, 0, asked, rest);
  if (error) errno = error;
  return error ? -1 : 0;
}

BEHIND(usleep)
int usleep(useconds_t us) {
  struct timespec asked = timespec_of((int64_t)us * 1000);
  return attached() ? nanosleep(&asked, NULL) : REAL(usleep)(us);
}

BEHIND(sleep)
unsigned sleep(unsigned seconds) {
  struct timespec asked = {(time_t)seconds, 0}, rest = {0, 0};
  if (!attached()) return REAL(sleep)(seconds);
  return nanosleep(&asked, &rest) ? (unsigned)rest.tv_sec + (rest.tv_nsec >= SECOND / 2) : 0;
}

/* -- Descriptors -- */

/* Wait by `call`, which sets `found` to what it returns, with `left` nanoseconds of the machine's. */
#define WAITS_FOR_DESCRIPTORS(kind, due, caller, call)                   \
  struct slot *slot = begin_wait(page, kind, due, NULL, caller);         \
  for (;;) {                                                             \
    int64_t left = left_of(page, due);                                   \
    nudged = 0;                                                          \
    call;                                                                \
    if (found >= 0 || errno != EINTR || !nudged) break;                  \
    if (world_ns(page) < (due)) continue;                                \
    left = 0; /* look once more: what is ready counts more than time */  \
    call;                                                                \
    if (found < 0 && errno == EINTR) found = 0;                          \
    break;                                                               \
  }                                                                      \
  end_wait(slot, !found);

/* Rounded up, as the kernel does: a wait never ends too early. */
static int milliseconds(int64_t ns) {
  int64_t ms = (ns + 999999) / 1000000;
  return ms > INT_MAX ? INT_MAX : (int)ms;
}

BEHIND(poll)
static int poll_for(struct pollfd *fds, nfds_t count, int ms, const void *caller) {
  struct page *page = attached();
  if (!page || ms <= 0) return REAL(poll)(fds, count, ms);
  int64_t due = world_ns(page) + (int64_t)ms * 1000000;
  int found;
  WAITS_FOR_DESCRIPTORS(POLL, due, caller, found = REAL(poll)(fds, count, milliseconds(left)))
  return found;
}

int poll(struct pollfd *fds, nfds_t count, int ms) {
  return poll_for(fds, count, ms, __builtin_return_address(0));
}

int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t room);
int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t room) {
  if (room / sizeof *fds < count) abort();
  return poll_for(fds, count, ms, __builtin_return_address(0));
}

BEHIND(ppoll)
int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *asked, const sigset_t *mask) {
  struct page *page = attached();
  sigset_t copy;
  mask = without(page, mask, &copy);
  if (!page || !asked || !nanoseconds(asked)) return REAL(ppoll)(fds, count, asked, mask);
  int64_t due = world_ns(page) + nanoseconds(asked);
  int found;
  WAITS_FOR_DESCRIPTORS(POLL, due, __builtin_return_address(0), {
    struct timespec rest = timespec_of(left);
    found = REAL(ppoll)(fds, count, &rest, mask);
  })
  return found;
}

struct sets {
  fd_set *given[3];
  fd_set kept[3];
};

static void restore(struct sets *sets) {
  for (int i = 0; i < 3; i++)
    if (sets->given[i]) *sets->given[i] = sets->kept[i];
}

BEHIND(pselect)
static int select_for(int count, fd_set *r, fd_set *w, fd_set *e, int64_t timeout,
                      const sigset_t *mask, int64_t *rest, const void *caller) {
  struct page *page = attached();
  struct sets sets = {{r, w, e}, {{{0}}}};
  for (int i = 0; i < 3; i++)
    if (sets.given[i]) sets.kept[i] = *sets.given[i];
  int64_t due = world_ns(page) + timeout;
  int found;
  WAITS_FOR_DESCRIPTORS(POLL, due, caller, {
    struct timespec remaining = timespec_of(left);
    restore(&sets);
    found = REAL(pselect)(count, r, w, e, &remaining, mask);
  })
  if (!found) {
    for (int i = 0; i < 3; i++)
      if (sets.given[i]) FD_ZERO(sets.given[i]);
  }
  *rest = left_of(page, due);
  return found;
}

BEHIND(select)
int select(int count, fd_set *r, fd_set *w, fd_set *e, struct timeval *asked) {
  struct page *page = attached();
  int64_t timeout = asked ? (int64_t)asked->tv_sec * SECOND + asked->tv_usec * 1000 : 0, rest;
  /* Sets of more than FD_SETSIZE descriptors, which some programs make, are not copied. */
  if (!page || timeout <= 0 || count > FD_SETSIZE) return REAL(select)(count, r, w, e, asked);
  int found = select_for(count, r, w, e, timeout, NULL, &rest, __builtin_return_address(0));
  *asked = (struct timeval){(time_t)(rest / SECOND), (suseconds_t)(rest % SECOND / 1000)};
  return found;
}

int pselect(int count, fd_set *r, fd_set *w, fd_set *e, const struct timespec *asked,
            const sigset_t *mask) {
  struct page *page = attached();
  sigset_t copy;
  int64_t rest;
  mask = without(page, mask, &copy);
  if (!page || !asked || !nanoseconds(asked) || count > FD_SETSIZE)
    return REAL(pselect)(count, r, w, e, asked, mask);
  return select_for(count, r, w, e, nanoseconds(asked), mask, &rest, __builtin_return_address(0));
}

BEHIND(epoll_pwait)
static int epoll_for(int fd, struct epoll_event *events, int count, int ms, const sigset_t *mask,
                     const void *caller) {
  struct page *page = attached();
  sigset_t copy;
  mask = without(page, mask, &copy);
  if (!page || ms <= 0) return REAL(epoll_pwait)(fd, events, count, ms, mask);
  int64_t due = world_ns(page) + (int64_t)ms * 1000000;
  int found;
  WAITS_FOR_DESCRIPTORS(EPOLL, due, caller,
                        found = REAL(epoll_pwait)(fd, events, count, milliseconds(left), mask))
  return found;
}

int epoll_wait(int fd, struct epoll_event *events, int count, int ms) {
  return epoll_for(fd, events, count, ms, NULL, __builtin_return_address(0));
}

int epoll_pwait(int fd, struct epoll_event *events, int count, int ms, const sigset_t *mask) {
  return epoll_for(fd, events, count, ms, mask, __builtin_return_address(0));
}

#if __GLIBC_PREREQ(2, 35)
BEHIND(epoll_pwait2)
int epoll_pwait2(int fd, struct epoll_event *events, int count, const struct timespec *asked,
                 const sigset_t *mask) {
  struct page *page = attached();
  sigset_t copy;
  mask = without(page, mask, &copy);
  if (!page || !asked || !nanoseconds(asked))
    return REAL(epoll_pwait2)(fd, events, count, asked, mask);
  int64_t due = world_ns(page) + nanoseconds(asked);
  int found;
  WAITS_FOR_DESCRIPTORS(EPOLL, due, __builtin_return_address(0), {
    struct timespec rest = timespec_of(left);
    found = REAL(epoll_pwait2)(fd, events, count, &rest, mask);
  })
  return found;
}
#endif

/* -- Semaphores -- */

BEHIND(sem_clockwait)
BEHIND(sem_timedwait)
BEHIND(sem_trywait)
static int semaphore_for(sem_t *semaphore, clockid_t clock, const struct timespec *until,
                         const void *caller) {
  struct page *page = attached();
  int64_t due = monotonic_ns(page, clock, nanoseconds(until));
  struct slot *slot = begin_wait(page, SEMAPHORE, due, NULL, caller);
  int failed;
  for (;;) {
    struct timespec at = timespec_of(due - offset_of(page));
    nudged = 0;
    failed = REAL(sem_clockwait)(semaphore, CLOCK_MONOTONIC, &at);
    if (!failed || errno != EINTR || !nudged) break;
    if (world_ns(page) < due) continue;
    failed = REAL(sem_trywait)(semaphore);
    if (failed) errno = ETIMEDOUT;
    break;
  }
  end_wait(slot, failed && errno == ETIMEDOUT);
  return failed;
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict at) {
  if (!attached() || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
    return REAL(sem_clockwait)(semaphore, clock, at);
  return semaphore_for(semaphore, clock, at, __builtin_return_address(0));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at) {
  if (!attached()) return REAL(sem_timedwait)(semaphore, at);
  return semaphore_for(semaphore, CLOCK_REALTIME, at, __builtin_return_address(0));
}

/* -- Condition variables -- */

BEHIND(pthread_cond_broadcast)
BEHIND(pthread_cond_clockwait)
BEHIND(pthread_cond_timedwait)

/* Broadcast the variables whose waits are due; returns whether any is. No variable is touched after
   its waiter has left: that waits while its slot says IS_WOKEN. */
static int wake_due(struct page *page, uint32_t pid) {
  int64_t now = world_ns(page);
  uint32_t used = atomic_load(&page->used);
  int is_any_due = 0;
  for (uint32_t i = 0; i < used; i++) {
    struct slot *slot = &page->slots[i];
    uint32_t waits = WAITS;
    if (!atomic_load(&slot->tid) || slot->pid != pid || slot->kind != CONDITION) continue;
    int64_t due = atomic_load(&slot->due);
    if (!due || due > now) continue;
    is_any_due = 1;
    if (!atomic_compare_exchange_strong(&slot->lock, &waits, IS_WOKEN)) continue;
    if (atomic_load(&slot->due) == due) REAL_CONDITION(pthread_cond_broadcast)(slot->object);
    atomic_store(&slot->lock, WAITS);
  }
  return is_any_due;
}

static void *wake_conditions(void *given) {
  struct page *page = given;
  uint32_t pid = (uint32_t)getpid();
  mine = claim(page);
  if (mine) mine->kind = HELPER;
  for (;;) {
    uint32_t jumps = atomic_load(&page->jumps);
    struct timespec soon = timespec_of(AGAIN_NS);
    struct timespec *until = wake_due(page, pid) ? &soon : NULL;
    REAL(syscall)(SYS_futex, &page->jumps, FUTEX_WAIT, jumps, until, NULL, 0);
  }
  return NULL;
}

BEHIND(pthread_create)
static void start_helper(struct page *page) {
  uint32_t pid = (uint32_t)getpid(), was = atomic_load(&helper_of);
  if (was == pid || !atomic_compare_exchange_strong(&helper_of, &was, pid)) return;
  sigset_t all, old;
  pthread_attr_t attributes;
  pthread_t thread;
  sigfillset(&all);
  REAL(pthread_sigmask)(SIG_SETMASK, &all, &old);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  if (!REAL(pthread_create)(&thread, &attributes, wake_conditions, page))
    pthread_setname_np(thread, "multihost-clock");
  pthread_attr_destroy(&attributes);
  REAL(pthread_sigmask)(SIG_SETMASK, &old, NULL);
}

static int condition_for(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                         const struct timespec *until, const void *caller) {
  struct page *page = attached();
  int64_t due = monotonic_ns(page, clock, nanoseconds(until));
  int is_short = due - world_ns(page) <= GIL_NS;
  if (!is_short) start_helper(page);
  struct slot *slot = is_short ? NULL : begin_wait(page, CONDITION, due, condition, caller);
  struct timespec at = timespec_of(due - offset_of(page));
  int error = REAL(pthread_cond_clockwait)(condition, mutex, CLOCK_MONOTONIC, &at);
  /* Who was woken after a jump returns as from a spurious wakeup, and waits again: then the time is
     over, and the C library says so, if the condition does not hold meanwhile. */
  end_wait(slot, world_ns(page) >= due);
  return error;
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  if (!attached() || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, until);
  return condition_for(condition, mutex, clock, until, __builtin_return_address(0));
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  if (!attached()) return REAL_CONDITION(pthread_cond_timedwait)(condition, mutex, until);
  /* glibc keeps the clock of pthread_condattr_setclock() there (nptl/pthread_cond_common.c). */
  clockid_t clock = condition->__data.__wrefs & 2 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
  return condition_for(condition, mutex, clock, until, __builtin_return_address(0));
}

/* -- System calls made directly: absl and libstdc++ wait for futexes in this way -- */

static long futex_for(struct page *page, long a[6], const void *caller) {
  const struct timespec *asked = (const struct timespec *)a[3];
  int command = (int)a[1] & FUTEX_CMD_MASK;
  clockid_t clock = a[1] & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC;
  int64_t at = nanoseconds(asked);
  int64_t due = command == FUTEX_WAIT ? world_ns(page) + at : monotonic_ns(page, clock, at);
  long operation = (a[1] & ~(FUTEX_CLOCK_REALTIME | FUTEX_CMD_MASK)) | FUTEX_WAIT_BITSET;
  long mask = command == FUTEX_WAIT ? (long)FUTEX_BITSET_MATCH_ANY : a[5];
  struct slot *slot = begin_wait(page, FUTEX, due, NULL, caller);
  long failed;
  for (;;) {
    struct timespec until = timespec_of(due - offset_of(page));
    nudged = 0;
    failed = REAL(syscall)(SYS_futex, a[0], operation, a[2], &until, a[4], mask);
    if (!failed || errno != EINTR || !nudged) break;
    if (world_ns(page) < due) continue;
    errno = ETIMEDOUT;
    break;
  }
  end_wait(slot, failed && errno == ETIMEDOUT);
  return failed;
}

long syscall(long number, ...) {
  struct page *page = attached();
  long a[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
  va_end(rest);
  if (page && number == SYS_futex && a[3]) {
    int command = (int)a[1] & FUTEX_CMD_MASK;
    if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET)
      return futex_for(page, a, __builtin_return_address(0));
  }
  if (page && number == SYS_clock_gettime)
    return clock_gettime((clockid_t)a[0], (struct timespec *)a[1]);
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* -- Signals that are waited for -- */

BEHIND(sigtimedwait)
int sigtimedwait(const sigset_t *restrict set, siginfo_t *restrict info,
                 const struct timespec *restrict asked) {
  struct page *page = attached();
  if (!page || !asked || !nanoseconds(asked)) return REAL(sigtimedwait)(set, info, asked);
  int64_t due = world_ns(page) + nanoseconds(asked);
  struct slot *slot = begin_wait(page, SIGNAL, due, NULL, __builtin_return_address(0));
  int number;
  for (;;) {
    struct timespec rest = timespec_of(left_of(page, due));
    nudged = 0;
    number = REAL(sigtimedwait)(set, info, &rest);
    if (number >= 0 || errno != EINTR || !nudged) break;
    if (world_ns(page) < due) continue;
    errno = EAGAIN;
    break;
  }
  end_wait(slot, number < 0 && errno == EAGAIN);
  return number;
}

/* -- Which page -- */

static void in_child(void) {
  mine = NULL; /* its slot is that of the thread that has forked it */
  pthread_setspecific(leaving, NULL);
}

/* Live by the clock in the page at `path` from now on, for good. Returns an errno, or 0. */
int multihost_clock_attach(const char *path) {
  struct stat status;
  int fd = (int)REAL(syscall)(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno;
  struct page *found = MAP_FAILED;
  if (!fstat(fd, &status) && (size_t)status.st_size >= sizeof(struct page))
    found = (struct page *)REAL(syscall)(SYS_mmap, NULL, sizeof(struct page),
                                         PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REAL(syscall)(SYS_close, fd);
  if (found == MAP_FAILED) return EINVAL;
  struct sigaction action = {.sa_handler = nudge, .sa_flags = SA_RESTART};
  if (memcmp(found->magic, MAGIC, sizeof MAGIC - 1) ||
      sigaction((int)found->signal, &action, NULL)) {
    munmap(found, sizeof(struct page));
    return EINVAL;
  }
  atomic_store(&current, found);
  unblock(found);
  return 0;
}

__attribute__((constructor)) static void begin(void) {
  int kept = errno;
  pthread_key_create(&leaving, leave);
  pthread_atfork(NULL, NULL, in_child);
  const char *path = getenv("PYTEST_MULTIHOST_CLOCK_PAGE");
  if (path && *path) multihost_clock_attach(path); /* a page that is gone is no reason to fail */
  errno = kept;
}
