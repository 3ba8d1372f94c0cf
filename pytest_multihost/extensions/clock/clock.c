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
#include <link.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { SLOTS = 8192, HEADER = 4096, TIMERS = 64, PIECES = 64 };
enum { SLEEP = 1, POLL, EPOLL, SEMAPHORE, CONDITION, FUTEX, MUTEX, SIGNAL, SOCKET, TIMER, HELPER };
enum { LOOP = 1, IDLE = 2 }; /* of slot.flags */
enum { FREE = 0, WAITS = 1, IS_WOKEN = 2, WAS_WOKEN = 3 }; /* of slot.lock */
enum { NO_SLOT = 1, MANY_TIMERS = 2, OTHER_SOCKET_CALL = 4 }; /* of page.doubts */

#define MAGIC "MHCLOCK1"
#define SECOND 1000000000ll
#define GIL_NS 6000000ll /* Python asks for the GIL every 5 ms: no timer of the program's */
#define LOOP_NS 100000000ll
#define AGAIN_NS 1000000ll
#define SLICE_NS 20000000ll /* who waits for a mutex looks this often whether it is due */
#define ENDLESS_NS (INT64_MAX / 4) /* so that times can be added without an overflow */

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
  _Atomic uint32_t has_socket_timeouts; /* whether any process has ever set one */
  char reserved[HEADER - 40];
  struct slot slots[SLOTS];
};

static _Atomic(struct page *) current;
static _Atomic uint32_t helper_of; /* the process whose condition thread has been started */
static pthread_key_t leaving;
static uintptr_t python_begins, python_ends; /* where the interpreter's code is, 0: no interpreter */

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
  if (time->tv_sec > ENDLESS_NS / SECOND) return ENDLESS_NS;
  return (int64_t)time->tv_sec * SECOND + time->tv_nsec;
}

/* Others are left to the C library, which tells the caller so. */
static int is_time(const struct timespec *time) {
  return time && time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < SECOND;
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

/* Whether a signal that the thread does not block, and that has a handler, is about to come. */
static int is_another_pending(uint64_t blocked) {
  uint64_t pending = 0;
  REAL(syscall)(SYS_rt_sigpending, &pending, _NSIG / 8);
  for (pending &= ~blocked; pending; pending &= pending - 1) {
    struct sigaction action;
    if (sigaction(__builtin_ctzll(pending) + 1, NULL, &action)) continue;
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return 1;
  }
  return 0;
}

/* Note that a wait has been interrupted by this signal alone. If another one has done so as well, the
   caller must be told: the kernel then enters this handler from the other's first instruction, or
   the other one is still pending, since this handler blocks all. */
static void nudge(int number, siginfo_t *info, void *context) {
  const ucontext_t *before = context;
  int kept = errno;
  uint64_t blocked;
  (void)info;
  memcpy(&blocked, &before->uc_sigmask, sizeof blocked);
#if defined __x86_64__
  int64_t returned = before->uc_mcontext.gregs[REG_RAX];
#elif defined __aarch64__
  int64_t returned = (int64_t)before->uc_mcontext.regs[0];
#else
  int64_t returned = -EINTR;
#endif
  nudged = returned == -EINTR && !is_another_pending(blocked | 1ull << (number - 1));
  errno = kept;
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

static void leave_slot(struct slot *slot) {
  atomic_store(&slot->due, 0);
  atomic_store(&slot->tid, 0);
}

static void leave(void *slot) {
  leave_slot(slot);
  mine = NULL;
}

static int is_taken(struct slot *slot) {
  return atomic_load_explicit(&slot->tid, memory_order_relaxed) != 0;
}

/* The number of slots that may be in use: never more than there are, whatever the page says. */
static uint32_t used_slots(struct page *page) {
  uint32_t used = atomic_load(&page->used);
  return used < SLOTS ? used : SLOTS;
}

/* Give back what threads have left that could not do so themselves: those that this process had before
   an exec, or if `is_full` those of all processes that have ended. */
static void reclaim(struct page *page, int is_full) {
  uint32_t used = used_slots(page), pid = (uint32_t)getpid();
  for (uint32_t i = 0; i < used; i++) {
    struct slot *slot = &page->slots[i];
    uint32_t tid = atomic_load(&slot->tid), owner = slot->pid;
    if (!tid || !owner) continue;
    int is_gone = is_full ? REAL(syscall)(SYS_tgkill, owner, tid, 0) && errno == ESRCH : owner == pid;
    if (!is_gone) continue;
    atomic_store(&slot->due, 0);
    atomic_compare_exchange_strong(&slot->tid, &tid, 0);
  }
}

static struct slot *take_slot(struct page *page, uint32_t tid) {
  for (uint32_t i = 0; i < SLOTS; i++) {
    struct slot *slot = &page->slots[i];
    uint32_t nobody = 0;
    if (is_taken(slot) || !atomic_compare_exchange_strong(&slot->tid, &nobody, tid)) continue;
    atomic_store(&slot->due, 0);
    slot->pid = (uint32_t)getpid();
    slot->timeout = 0;
    slot->kind = slot->rounds = slot->flags = 0;
    atomic_store(&slot->lock, FREE);
    uint32_t used = atomic_load(&page->used);
    while (used < i + 1 && !atomic_compare_exchange_weak(&page->used, &used, i + 1)) {}
    return slot;
  }
  return NULL;
}

static struct slot *claim(struct page *page) {
  uint32_t tid = thread_id();
  struct slot *slot = take_slot(page, tid);
  if (!slot) {
    reclaim(page, 1);
    slot = take_slot(page, tid);
  }
  unblock(page);
  if (slot) pthread_setspecific(leaving, slot);
  else atomic_fetch_or(&page->doubts, NO_SLOT);
  return slot;
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

/* Say that it is over. Returns whether the condition variable has been broadcast since its time came. */
static int end_wait(struct slot *slot, int has_timed_out) {
  if (!slot) return 0;
  atomic_store(&slot->due, 0);
  slot->rounds = has_timed_out ? slot->rounds + 1 : 0;
  if (slot->kind != CONDITION) return 0;
  for (;;) {
    uint32_t was = atomic_load(&slot->lock);
    if (was == IS_WOKEN) sched_yield();
    else if (atomic_compare_exchange_weak(&slot->lock, &was, FREE)) return was == WAS_WOKEN;
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
  if (!at) return REAL(clock_nanosleep)(clock, flags, asked, rest); /* a yield */
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

/* A wait without a timeout: the signal may have been meant for one that has ended just now. */
#define WAITS_ENDLESSLY(call) \
  do {                        \
    nudged = 0;               \
    call;                     \
  } while (found < 0 && errno == EINTR && nudged)

/* Rounded up, as the kernel does: a wait never ends too early. */
static int milliseconds(int64_t ns) {
  int64_t ms = (ns + 999999) / 1000000;
  return ms > INT_MAX ? INT_MAX : (int)ms;
}

BEHIND(poll)
static int poll_for(struct pollfd *fds, nfds_t count, int ms, const void *caller) {
  struct page *page = attached();
  int found;
  if (!page || !ms) return REAL(poll)(fds, count, ms);
  if (ms < 0) {
    WAITS_ENDLESSLY(found = REAL(poll)(fds, count, ms));
    return found;
  }
  int64_t due = world_ns(page) + (int64_t)ms * 1000000;
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
static int ppoll_for(struct pollfd *fds, nfds_t count, const struct timespec *asked,
                     const sigset_t *mask, const void *caller) {
  struct page *page = attached();
  sigset_t copy;
  int found;
  mask = without(page, mask, &copy);
  if (!page || (asked && (!is_time(asked) || !nanoseconds(asked))))
    return REAL(ppoll)(fds, count, asked, mask);
  if (!asked) {
    WAITS_ENDLESSLY(found = REAL(ppoll)(fds, count, NULL, mask));
    return found;
  }
  int64_t due = world_ns(page) + nanoseconds(asked);
  WAITS_FOR_DESCRIPTORS(POLL, due, caller, {
    struct timespec rest = timespec_of(left);
    found = REAL(ppoll)(fds, count, &rest, mask);
  })
  return found;
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *asked, const sigset_t *mask) {
  return ppoll_for(fds, count, asked, mask, __builtin_return_address(0));
}

int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *asked, const sigset_t *mask,
                size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *asked, const sigset_t *mask,
                size_t room) {
  if (room / sizeof *fds < count) abort();
  return ppoll_for(fds, count, asked, mask, __builtin_return_address(0));
}

/* A set has as many bytes as its count needs, in whole words, as for the kernel: a program may have
   allocated no more of it. */
struct sets {
  fd_set *given[3];
  size_t size;
  fd_set kept[3];
};

static void restore(struct sets *sets) {
  for (int i = 0; i < 3; i++)
    if (sets->given[i]) memcpy(sets->given[i], &sets->kept[i], sets->size);
}

BEHIND(pselect)
static int select_for(int count, fd_set *r, fd_set *w, fd_set *e, int64_t timeout,
                      const sigset_t *mask, int64_t *rest, const void *caller) {
  struct page *page = attached();
  size_t bits = 8 * sizeof(long);
  struct sets sets = {{r, w, e}, ((size_t)count + bits - 1) / bits * sizeof(long), {{{0}}}};
  for (int i = 0; i < 3; i++)
    if (sets.given[i]) memcpy(&sets.kept[i], sets.given[i], sets.size);
  int64_t due = world_ns(page) + timeout;
  int found;
  WAITS_FOR_DESCRIPTORS(POLL, due, caller, {
    struct timespec remaining = timespec_of(left);
    restore(&sets);
    found = REAL(pselect)(count, r, w, e, &remaining, mask);
  })
  if (!found) {
    for (int i = 0; i < 3; i++)
      if (sets.given[i]) memset(sets.given[i], 0, sets.size);
  }
  *rest = left_of(page, due);
  return found;
}

BEHIND(select)
int select(int count, fd_set *r, fd_set *w, fd_set *e, struct timeval *asked) {
  struct page *page = attached();
  int found;
  if (page && !asked) {
    WAITS_ENDLESSLY(found = REAL(select)(count, r, w, e, NULL));
    return found;
  }
  struct timespec time = {asked ? asked->tv_sec : 0, asked ? asked->tv_usec * 1000 : 0};
  int64_t timeout = nanoseconds(&time), rest;
  /* Sets of more than FD_SETSIZE descriptors, which some programs make, are not copied. */
  if (!page || timeout <= 0 || count < 0 || count > FD_SETSIZE) return REAL(select)(count, r, w, e, asked);
  found = select_for(count, r, w, e, timeout, NULL, &rest, __builtin_return_address(0));
  *asked = (struct timeval){(time_t)(rest / SECOND), (suseconds_t)(rest % SECOND / 1000)};
  return found;
}

int pselect(int count, fd_set *r, fd_set *w, fd_set *e, const struct timespec *asked,
            const sigset_t *mask) {
  struct page *page = attached();
  sigset_t copy;
  int64_t rest;
  int found;
  mask = without(page, mask, &copy);
  if (page && !asked) {
    WAITS_ENDLESSLY(found = REAL(pselect)(count, r, w, e, NULL, mask));
    return found;
  }
  if (!page || !is_time(asked) || !nanoseconds(asked) || count < 0 || count > FD_SETSIZE)
    return REAL(pselect)(count, r, w, e, asked, mask);
  return select_for(count, r, w, e, nanoseconds(asked), mask, &rest, __builtin_return_address(0));
}

BEHIND(epoll_pwait)
static int epoll_for(int fd, struct epoll_event *events, int count, int ms, const sigset_t *mask,
                     const void *caller) {
  struct page *page = attached();
  sigset_t copy;
  mask = without(page, mask, &copy);
  int found;
  if (!page || !ms) return REAL(epoll_pwait)(fd, events, count, ms, mask);
  if (ms < 0) {
    WAITS_ENDLESSLY(found = REAL(epoll_pwait)(fd, events, count, ms, mask));
    return found;
  }
  int64_t due = world_ns(page) + (int64_t)ms * 1000000;
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
  int found;
  if (!page || (asked && (!is_time(asked) || !nanoseconds(asked))))
    return REAL(epoll_pwait2)(fd, events, count, asked, mask);
  if (!asked) {
    WAITS_ENDLESSLY(found = REAL(epoll_pwait2)(fd, events, count, NULL, mask));
    return found;
  }
  int64_t due = world_ns(page) + nanoseconds(asked);
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
  if (!attached() || !is_time(at) || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
    return REAL(sem_clockwait)(semaphore, clock, at);
  return semaphore_for(semaphore, clock, at, __builtin_return_address(0));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at) {
  if (!attached() || !is_time(at)) return REAL(sem_timedwait)(semaphore, at);
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
  uint32_t used = used_slots(page);
  int is_any_due = 0;
  for (uint32_t i = 0; i < used; i++) {
    struct slot *slot = &page->slots[i];
    if (!atomic_load(&slot->tid) || slot->pid != pid || slot->kind != CONDITION) continue;
    int64_t due = atomic_load(&slot->due);
    if (!due || due > now) continue;
    is_any_due = 1;
    uint32_t was = atomic_load(&slot->lock);
    if (was == FREE || !atomic_compare_exchange_strong(&slot->lock, &was, IS_WOKEN)) continue;
    int is_same = atomic_load(&slot->due) == due;
    if (is_same) REAL_CONDITION(pthread_cond_broadcast)(slot->object);
    atomic_store(&slot->lock, is_same ? WAS_WOKEN : was);
  }
  return is_any_due;
}

static int follow_timers(struct page *page);

static void *help(void *given) {
  struct page *page = given;
  uint32_t pid = (uint32_t)getpid();
  mine = claim(page);
  if (mine) mine->kind = HELPER;
  for (;;) {
    uint32_t jumps = atomic_load(&page->jumps);
    struct timespec soon = timespec_of(AGAIN_NS);
    int is_any_due = wake_due(page, pid) | follow_timers(page);
    struct timespec *until = is_any_due ? &soon : NULL;
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
  if (!REAL(pthread_create)(&thread, &attributes, help, page))
    pthread_setname_np(thread, "multihost-clock");
  pthread_attr_destroy(&attributes);
  REAL(pthread_sigmask)(SIG_SETMASK, &old, NULL);
}

static int condition_for(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                         const struct timespec *until, const void *caller) {
  struct page *page = attached();
  int64_t due = monotonic_ns(page, clock, nanoseconds(until));
  int is_for_gil = (uintptr_t)caller - python_begins < python_ends - python_begins &&
                   due - world_ns(page) <= GIL_NS;
  if (!is_for_gil) start_helper(page);
  struct slot *slot = is_for_gil ? NULL : begin_wait(page, CONDITION, due, condition, caller);
  struct timespec at = timespec_of(due - offset_of(page));
  int error = REAL(pthread_cond_clockwait)(condition, mutex, CLOCK_MONOTONIC, &at);
  /* All who wait for the variable have been woken and look again, so none is harmed if this one has
     taken a signal besides, and yet reports the timeout. */
  int is_due = world_ns(page) >= due;
  int was_woken = end_wait(slot, is_due);
  return !error && was_woken && is_due ? ETIMEDOUT : error;
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  if (!attached() || !is_time(until) || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, until);
  return condition_for(condition, mutex, clock, until, __builtin_return_address(0));
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  if (!attached() || !is_time(until))
    return REAL_CONDITION(pthread_cond_timedwait)(condition, mutex, until);
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
  int command = (int)a[1] & FUTEX_CMD_MASK; /* of other commands the fourth is no time */
  if (page && number == SYS_futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) &&
      is_time((const struct timespec *)a[3]))
    return futex_for(page, a, __builtin_return_address(0));
  if (page && number == SYS_clock_gettime)
    return clock_gettime((clockid_t)a[0], (struct timespec *)a[1]);
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* -- Signals that are waited for -- */

BEHIND(sigtimedwait)
int sigtimedwait(const sigset_t *restrict set, siginfo_t *restrict info,
                 const struct timespec *restrict asked) {
  struct page *page = attached();
  sigset_t copy;
  int found;
  set = without(page, set, &copy);
  if (!page || (asked && (!is_time(asked) || !nanoseconds(asked))))
    return REAL(sigtimedwait)(set, info, asked);
  if (!asked) {
    WAITS_ENDLESSLY(found = REAL(sigtimedwait)(set, info, NULL));
    return found;
  }
  int64_t due = world_ns(page) + nanoseconds(asked);
  struct slot *slot = begin_wait(page, SIGNAL, due, NULL, __builtin_return_address(0));
  for (;;) {
    struct timespec rest = timespec_of(left_of(page, due));
    nudged = 0;
    found = REAL(sigtimedwait)(set, info, &rest);
    if (found >= 0 || errno != EINTR || !nudged) break;
    if (world_ns(page) < due) continue;
    errno = EAGAIN;
    break;
  }
  end_wait(slot, found < 0 && errno == EAGAIN);
  return found;
}

int sigwaitinfo(const sigset_t *restrict set, siginfo_t *restrict info) {
  return sigtimedwait(set, info, NULL);
}

BEHIND(sigwait)
int sigwait(const sigset_t *restrict set, int *restrict number) {
  sigset_t copy;
  return REAL(sigwait)(without(attached(), set, &copy), number);
}

BEHIND(sigsuspend)
int sigsuspend(const sigset_t *mask) {
  struct page *page = attached();
  sigset_t copy;
  int found;
  mask = without(page, mask, &copy);
  if (!page) return REAL(sigsuspend)(mask);
  WAITS_ENDLESSLY(found = REAL(sigsuspend)(mask));
  return found;
}

BEHIND(pause)
int pause(void) {
  int found;
  if (!attached()) return REAL(pause)();
  WAITS_ENDLESSLY(found = REAL(pause)());
  return found;
}

/* -- Timers of the kernel: they send a signal, or make a descriptor readable -- */

enum { NO_TIMER, ALARM, DESCRIPTOR, POSIX };

struct timer {
  int kind;
  long id; /* the descriptor, or what timer_create() has made */
  int64_t due, interval;
  int64_t offset; /* of the world's clock when the kernel's timer was set to `due` */
  struct slot *slot;
};

/* Under a lock, and that with all signals blocked: a handler may set an alarm. */
static struct timer timers[TIMERS];
static _Atomic uint32_t timers_lock;
static _Atomic uint32_t is_any_timer; /* whether any has ever been set in this process */

static void lock_timers(uint64_t *mask) {
  uint64_t all = ~0ull;
  uint32_t nobody;
  REAL(syscall)(SYS_rt_sigprocmask, SIG_SETMASK, &all, mask, _NSIG / 8);
  while (nobody = 0, !atomic_compare_exchange_weak(&timers_lock, &nobody, 1)) sched_yield();
}

static void unlock_timers(const uint64_t *mask) {
  atomic_store(&timers_lock, 0);
  REAL(syscall)(SYS_rt_sigprocmask, SIG_SETMASK, mask, NULL, _NSIG / 8);
}

static struct timer *timer_of(int kind, long id) {
  for (int i = 0; i < TIMERS; i++)
    if (timers[i].kind == kind && timers[i].id == id) return &timers[i];
  return NULL;
}

static struct timer *new_timer(struct page *page, int kind, long id) {
  struct timer *timer = timer_of(kind, id);
  if (!timer) timer = timer_of(NO_TIMER, 0);
  if (timer) *timer = (struct timer){.kind = kind, .id = id, .slot = timer->slot};
  else atomic_fetch_or(&page->doubts, MANY_TIMERS);
  return timer;
}

static void show_timer(struct page *page, struct timer *timer) {
  if (!timer->slot && timer->due) timer->slot = take_slot(page, (uint32_t)getpid());
  if (!timer->slot) {
    if (timer->due) atomic_fetch_or(&page->doubts, NO_SLOT);
    return;
  }
  timer->slot->kind = TIMER;
  timer->slot->object = timer->kind == DESCRIPTOR ? (void *)(uintptr_t)(timer->id + 1) : NULL;
  timer->slot->timeout = timer->due ? timer->due - world_ns(page) : 0;
  atomic_fetch_add(&timer->slot->serial, 1);
  atomic_store(&timer->slot->due, timer->due);
}

static void forget_timer(struct timer *timer) {
  if (timer->slot) leave_slot(timer->slot);
  *timer = (struct timer){0};
}

BEHIND(setitimer)
BEHIND(getitimer)
BEHIND(timerfd_settime)
BEHIND(timerfd_gettime)
BEHIND(timer_create)
BEHIND(timer_delete)
BEHIND(timer_settime)
BEHIND(timer_gettime)

#define REAL_TIMER(name) ((__typeof__(&name))find(&behind_##name, #name, "GLIBC_2.3.3"))

static struct itimerspec in_ns(const struct itimerval *value) {
  return (struct itimerspec){{value->it_interval.tv_sec, value->it_interval.tv_usec * 1000},
                             {value->it_value.tv_sec, value->it_value.tv_usec * 1000}};
}

/* Rounded up: 0 would disarm it. */
static struct itimerval in_us(const struct itimerspec *value) {
  int64_t left = nanoseconds(&value->it_value) + 999;
  return (struct itimerval){
      {value->it_interval.tv_sec, value->it_interval.tv_nsec / 1000},
      {(time_t)(left / SECOND), (suseconds_t)(left % SECOND / 1000)}};
}

static int set_kernel(int kind, long id, const struct itimerspec *value) {
  if (kind == DESCRIPTOR) return REAL(timerfd_settime)((int)id, 0, value, NULL);
  if (kind == POSIX) return REAL_TIMER(timer_settime)((timer_t)id, 0, value, NULL);
  struct itimerval rounded = in_us(value);
  return REAL(setitimer)(ITIMER_REAL, &rounded, NULL);
}

static int get_kernel(int kind, long id, struct itimerspec *value) {
  if (kind == DESCRIPTOR) return REAL(timerfd_gettime)((int)id, value);
  if (kind == POSIX) return REAL_TIMER(timer_gettime)((timer_t)id, value);
  struct itimerval found;
  int failed = REAL(getitimer)(ITIMER_REAL, &found);
  if (!failed) *value = in_ns(&found);
  return failed;
}

/* Set the kernel's timer to what is left until it is due; to the next nanosecond if it is over. */
static int arm(struct page *page, struct timer *timer) {
  int64_t left;
  do {
    timer->offset = offset_of(page);
    left = timer->due - machine_ns(CLOCK_MONOTONIC) - timer->offset;
    struct itimerspec value = {timespec_of(timer->interval), timespec_of(left > 0 ? left : 1)};
    if (set_kernel(timer->kind, timer->id, &value)) return -1;
  } while (timer->offset != offset_of(page)); /* it has jumped before the helper could see this one */
  return 0;
}

/* What a caller is told of a timer that is followed. */
static void tell_timer(struct page *page, const struct timer *timer, struct itimerspec *told) {
  struct itimerspec found = {{0, 0}, {0, 0}};
  int64_t left = 0;
  if (timer->due && !get_kernel(timer->kind, timer->id, &found) && nanoseconds(&found.it_value)) {
    left = timer->due - world_ns(page);
    while (left <= 0 && timer->interval) left += timer->interval;
    if (left <= 0) left = 1;
  }
  *told = (struct itimerspec){timespec_of(timer->interval), timespec_of(left)};
}

/* A timer that has expired, or is to be late because the clock has jumped since it was set. The page
   must say so until the kernel has sent its signal: else the world seems to have no timer at all. */
static void follow_timer(struct page *page, struct timer *timer) {
  struct itimerspec found;
  int64_t before = machine_ns(CLOCK_MONOTONIC);
  if (get_kernel(timer->kind, timer->id, &found)) { /* closed, or deleted */
    forget_timer(timer);
    return;
  }
  int64_t left = nanoseconds(&found.it_value), expected = timer->due - timer->offset - before;
  int is_jumped = timer->offset != offset_of(page);
  /* Far from what was set: it is another timer, whose descriptor has got the same number. */
  if (left > expected + SECOND && (!timer->interval || left > timer->interval)) {
    forget_timer(timer);
    return;
  }
  /* One that expires of itself in a moment is left alone: it must not do so twice. */
  if (is_jumped && left > AGAIN_NS) {
    if (arm(page, timer)) return;
    for (int tries = 0; timer->due <= world_ns(page) && tries < 1000; tries++) {
      struct timespec moment = {0, 20000};
      if (get_kernel(timer->kind, timer->id, &found) || !(left = nanoseconds(&found.it_value)) ||
          (timer->interval && left > 1000))
        break;
      REAL(clock_nanosleep)(CLOCK_MONOTONIC, 0, &moment, NULL);
    }
  }
  if (timer->due > world_ns(page)) return;
  if (!timer->interval && left) return; /* in a moment */
  timer->due = timer->interval ? world_ns(page) + left : 0;
  timer->offset = offset_of(page);
  show_timer(page, timer);
}

static int is_timer_late(struct page *page, const struct timer *timer) {
  return timer->due && (timer->offset != offset_of(page) || timer->due <= world_ns(page));
}

/* Returns whether one is due. */
static int follow_timers(struct page *page) {
  uint64_t mask;
  int is_any_due = 0;
  if (!atomic_load(&is_any_timer)) return 0;
  lock_timers(&mask);
  for (int i = 0; i < TIMERS; i++) {
    if (!is_timer_late(page, &timers[i])) continue;
    follow_timer(page, &timers[i]);
    is_any_due |= timers[i].due && timers[i].due <= world_ns(page);
  }
  unlock_timers(&mask);
  return is_any_due;
}

static int64_t timer_due(struct page *page, int is_absolute, const struct timespec *value) {
  int64_t at = nanoseconds(value);
  if (!at) return 0;
  if (!is_absolute) return world_ns(page) + at;
  /* Which clock a descriptor has is not known here, but no machine runs for thirty years. */
  return at < SECOND * SECOND ? at : monotonic_ns(page, CLOCK_REALTIME, at);
}

/* Set a timer as the world's clock has it. Returns as the C library does. */
static int set_timer(struct page *page, int kind, long id, int is_absolute,
                     const struct itimerspec *value, struct itimerspec *old) {
  uint64_t mask;
  int64_t due = timer_due(page, is_absolute, &value->it_value);
  int failed;
  if (due) start_helper(page);
  atomic_store(&is_any_timer, 1);
  lock_timers(&mask);
  struct timer *timer = timer_of(kind, id);
  if (old) {
    if (timer) tell_timer(page, timer, old);
    else get_kernel(kind, id, old);
  }
  if (!timer && due) timer = new_timer(page, kind, id);
  if (timer && due) {
    timer->due = due;
    timer->interval = nanoseconds(&value->it_interval);
    failed = arm(page, timer);
  } else {
    int64_t left = due ? left_of(page, due) : 0;
    struct itimerspec rest = {value->it_interval, timespec_of(due && !left ? 1 : left)};
    failed = set_kernel(kind, id, &rest);
    if (timer) timer->due = 0;
  }
  int error = errno;
  if (timer && failed) timer->due = 0;
  if (timer) show_timer(page, timer);
  if (timer && !timer->due && kind != POSIX) forget_timer(timer);
  unlock_timers(&mask);
  errno = error;
  return failed;
}

static void get_timer(struct page *page, int kind, long id, struct itimerspec *value) {
  uint64_t mask;
  lock_timers(&mask);
  struct timer *timer = timer_of(kind, id);
  if (timer) tell_timer(page, timer, value);
  unlock_timers(&mask);
}

static int is_timer(const struct itimerspec *value) {
  return value && is_time(&value->it_value) && is_time(&value->it_interval);
}

static int is_alarm(const struct itimerval *value) {
  struct itimerspec found = {{0, 0}, {0, 0}};
  if (value) found = in_ns(value);
  return value && is_timer(&found);
}

/* What an alarm has left that was set before an exec, which it survives. */
static void inherit_alarm(struct page *page) {
  struct itimerval found;
  if (REAL(getitimer)(ITIMER_REAL, &found) || !(found.it_value.tv_sec || found.it_value.tv_usec))
    return;
  struct itimerspec value = in_ns(&found);
  set_timer(page, ALARM, 0, 0, &value, NULL);
}

/* The names that the C library's header gives the first parameters are of enumerations. */
int setitimer(__itimer_which_t which, const struct itimerval *restrict value,
              struct itimerval *restrict old) {
  struct page *page = attached();
  struct itimerspec before;
  if (!page || which != ITIMER_REAL || !is_alarm(value)) return REAL(setitimer)(which, value, old);
  struct itimerspec asked = in_ns(value);
  int failed = set_timer(page, ALARM, 0, 0, &asked, old ? &before : NULL);
  if (!failed && old) *old = in_us(&before);
  return failed;
}

int getitimer(__itimer_which_t which, struct itimerval *value) {
  struct page *page = attached();
  struct itimerspec found;
  int failed = REAL(getitimer)(which, value);
  if (!page || failed || which != ITIMER_REAL) return failed;
  found = in_ns(value);
  get_timer(page, ALARM, 0, &found);
  *value = in_us(&found);
  return 0;
}

BEHIND(alarm)
unsigned alarm(unsigned seconds) {
  struct itimerval value = {{0, 0}, {(time_t)seconds, 0}}, old = {{0, 0}, {0, 0}};
  if (!attached()) return REAL(alarm)(seconds);
  setitimer(ITIMER_REAL, &value, &old);
  unsigned left = (unsigned)old.it_value.tv_sec + (old.it_value.tv_usec >= 500000);
  return left ? left : old.it_value.tv_usec > 0;
}

BEHIND(ualarm)
useconds_t ualarm(useconds_t us, useconds_t interval) {
  struct itimerval value = {{interval / 1000000, interval % 1000000}, {us / 1000000, us % 1000000}};
  struct itimerval old = {{0, 0}, {0, 0}};
  if (!attached()) return REAL(ualarm)(us, interval);
  setitimer(ITIMER_REAL, &value, &old);
  return (useconds_t)(old.it_value.tv_sec * 1000000 + old.it_value.tv_usec);
}

int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old) {
  struct page *page = attached();
  if (!page || !is_timer(value) || flags & ~TFD_TIMER_ABSTIME)
    return REAL(timerfd_settime)(fd, flags, value, old);
  return set_timer(page, DESCRIPTOR, fd, flags & TFD_TIMER_ABSTIME, value, old);
}

int timerfd_gettime(int fd, struct itimerspec *value) {
  struct page *page = attached();
  int failed = REAL(timerfd_gettime)(fd, value);
  if (page && !failed) get_timer(page, DESCRIPTOR, fd, value);
  return failed;
}

int timer_create(clockid_t clock, struct sigevent *restrict event, timer_t *restrict made) {
  struct page *page = attached();
  uint64_t mask;
  int failed = REAL_TIMER(timer_create)(clock, event, made);
  if (!page || failed || !is_of_world(clock)) return failed; /* those of CPU time are left alone */
  lock_timers(&mask);
  new_timer(page, POSIX, (long)*made);
  unlock_timers(&mask);
  return 0;
}

static int is_followed(struct page *page, timer_t timer) {
  uint64_t mask;
  if (!page) return 0;
  lock_timers(&mask);
  int is = timer_of(POSIX, (long)timer) != NULL;
  unlock_timers(&mask);
  return is;
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *restrict value,
                  struct itimerspec *restrict old) {
  struct page *page = attached();
  if (!is_timer(value) || !is_followed(page, timer))
    return REAL_TIMER(timer_settime)(timer, flags, value, old);
  return set_timer(page, POSIX, (long)timer, flags & TIMER_ABSTIME, value, old);
}

int timer_gettime(timer_t timer, struct itimerspec *value) {
  struct page *page = attached();
  int failed = REAL_TIMER(timer_gettime)(timer, value);
  if (page && !failed) get_timer(page, POSIX, (long)timer, value);
  return failed;
}

int timer_delete(timer_t timer) {
  struct page *page = attached();
  uint64_t mask;
  if (is_followed(page, timer)) {
    lock_timers(&mask);
    struct timer *followed = timer_of(POSIX, (long)timer);
    if (followed) forget_timer(followed);
    unlock_timers(&mask);
  }
  return REAL_TIMER(timer_delete)(timer);
}

/* -- Sockets with a timeout (SO_RCVTIMEO, SO_SNDTIMEO) -- */

/* Such a socket is asked for its timeout in each call: it may have been duplicated, inherited, sent to
   another process, or accepted. Before the first process of the world sets one, none is asked. */

BEHIND(setsockopt)
int setsockopt(int fd, int level, int option, const void *value, socklen_t size) {
  struct page *page = attached();
  if (page && level == SOL_SOCKET && (option == SO_RCVTIMEO || option == SO_SNDTIMEO))
    atomic_store(&page->has_socket_timeouts, 1);
  return REAL(setsockopt)(fd, level, option, value, size);
}

/* The world's time at which a call times out; 0: it has no timeout, or does not block. */
static int64_t socket_due(struct page *page, int fd, int option, int flags) {
  if (!page || !atomic_load_explicit(&page->has_socket_timeouts, memory_order_relaxed)) return 0;
  struct timeval asked = {0, 0};
  socklen_t size = sizeof asked;
  int kept = errno;
  int64_t due = 0;
  if (!(flags & MSG_DONTWAIT) && !getsockopt(fd, SOL_SOCKET, option, &asked, &size) &&
      (asked.tv_sec || asked.tv_usec) && !(REAL(syscall)(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK)) {
    struct timespec timeout = {asked.tv_sec, asked.tv_usec * 1000};
    due = world_ns(page) + nanoseconds(&timeout);
  }
  errno = kept;
  return due;
}

/* Returns whether it is ready; if not, errno is as the kernel has it. */
static int is_ready_in_time(struct page *page, int fd, short events, int64_t due,
                            const void *caller) {
  struct pollfd awaited = {fd, events, 0};
  int found;
  WAITS_FOR_DESCRIPTORS(SOCKET, due, caller, {
    struct timespec rest = timespec_of(left);
    found = REAL(ppoll)(&awaited, 1, &rest, NULL);
  })
  if (!found) errno = EAGAIN;
  return found > 0;
}

BEHIND(recv)
BEHIND(recvfrom)
BEHIND(recvmsg)
BEHIND(read)

#define RECEIVES(flags, caller, blocking, attempt)                                         \
  struct page *page = attached();                                                                \
  int64_t due = socket_due(page, fd, SO_RCVTIMEO, flags);                                        \
  if (due && (flags) & MSG_WAITALL) atomic_fetch_or(&page->doubts, OTHER_SOCKET_CALL);           \
  if (!due || (flags) & MSG_WAITALL) return blocking;                                            \
  ssize_t got;                                                                                   \
  do {                                                                                           \
    got = attempt;                                                                               \
  } while (got < 0 && errno == EAGAIN && is_ready_in_time(page, fd, POLLIN, due, caller));       \
  return got;

#define CALLER __builtin_return_address(0)

static ssize_t receive(int fd, void *b, size_t n, int flags, const void *caller) {
  RECEIVES(flags, caller, REAL(recv)(fd, b, n, flags),
           REAL(recv)(fd, b, n, flags | MSG_DONTWAIT))
}

ssize_t recv(int fd, void *b, size_t n, int flags) { return receive(fd, b, n, flags, CALLER); }

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  RECEIVES(flags, CALLER, REAL(recvmsg)(fd, message, flags),
           REAL(recvmsg)(fd, message, flags | MSG_DONTWAIT))
}

ssize_t recvfrom(int fd, void *restrict b, size_t n, int flags, __SOCKADDR_ARG from,
                 socklen_t *restrict size) {
  RECEIVES(flags, CALLER, REAL(recvfrom)(fd, b, n, flags, from, size),
           REAL(recvfrom)(fd, b, n, flags | MSG_DONTWAIT, from, size))
}

ssize_t read(int fd, void *b, size_t n) {
  RECEIVES(0, CALLER, REAL(read)(fd, b, n), REAL(recv)(fd, b, n, MSG_DONTWAIT))
}

ssize_t __recv_chk(int fd, void *b, size_t n, size_t room, int flags);
ssize_t __recv_chk(int fd, void *b, size_t n, size_t room, int flags) {
  if (n > room) abort();
  return receive(fd, b, n, flags, CALLER);
}

ssize_t __read_chk(int fd, void *b, size_t n, size_t room);
ssize_t __read_chk(int fd, void *b, size_t n, size_t room) {
  if (n > room) abort();
  return read(fd, b, n);
}

ssize_t __recvfrom_chk(int fd, void *b, size_t n, size_t room, int flags, __SOCKADDR_ARG from,
                       socklen_t *size);
ssize_t __recvfrom_chk(int fd, void *b, size_t n, size_t room, int flags, __SOCKADDR_ARG from,
                       socklen_t *size) {
  if (n > room) abort();
  return recvfrom(fd, b, n, flags, from, size);
}

BEHIND(send)
BEHIND(sendto)
BEHIND(sendmsg)
BEHIND(write)

/* Send all of it, or as much as the time allows. */
static ssize_t send_all(struct page *page, int fd, const struct msghdr *given, int flags, int64_t due,
                        const void *caller) {
  struct iovec pieces[PIECES];
  struct msghdr message = *given;
  ssize_t total = 0, sent;
  memcpy(pieces, given->msg_iov, given->msg_iovlen * sizeof *pieces);
  message.msg_iov = pieces;
  for (;;) {
    sent = REAL(sendmsg)(fd, &message, flags | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN && is_ready_in_time(page, fd, POLLOUT, due, caller)) continue;
    if (sent < 0) return total ? total : -1;
    total += sent;
    message.msg_control = NULL; /* has been sent with the first byte */
    message.msg_controllen = 0;
    while (message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len) {
      sent -= (ssize_t)message.msg_iov->iov_len;
      message.msg_iov++;
      message.msg_iovlen--;
    }
    if (!message.msg_iovlen) return total;
    message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
    message.msg_iov->iov_len -= (size_t)sent;
  }
}

static ssize_t send_bytes(struct page *page, int fd, const void *b, size_t n, int flags,
                          const void *to, socklen_t size, int64_t due, const void *caller) {
  struct iovec piece = {(void *)(uintptr_t)b, n};
  struct msghdr message = {.msg_name = (void *)(uintptr_t)to, .msg_namelen = size,
                           .msg_iov = &piece, .msg_iovlen = 1};
  return send_all(page, fd, &message, flags, due, caller);
}

ssize_t send(int fd, const void *b, size_t n, int flags) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_SNDTIMEO, flags);
  if (!due) return REAL(send)(fd, b, n, flags);
  return send_bytes(page, fd, b, n, flags, NULL, 0, due, CALLER);
}

ssize_t sendto(int fd, const void *b, size_t n, int flags, __CONST_SOCKADDR_ARG to,
               socklen_t size) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_SNDTIMEO, flags);
  if (!due) return REAL(sendto)(fd, b, n, flags, to, size);
  return send_bytes(page, fd, b, n, flags, to.__sockaddr__, size, due, CALLER);
}

ssize_t write(int fd, const void *b, size_t n) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_SNDTIMEO, 0);
  if (!due) return REAL(write)(fd, b, n);
  return send_bytes(page, fd, b, n, 0, NULL, 0, due, CALLER);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_SNDTIMEO, flags);
  if (due && message->msg_iovlen > PIECES) {
    atomic_fetch_or(&page->doubts, OTHER_SOCKET_CALL);
    due = 0;
  }
  if (!due) return REAL(sendmsg)(fd, message, flags);
  return send_all(page, fd, message, flags, due, CALLER);
}

BEHIND(accept)
int accept(int fd, __SOCKADDR_ARG from, socklen_t *restrict size) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_RCVTIMEO, 0);
  if (due && !is_ready_in_time(page, fd, POLLIN, due, CALLER)) return -1;
  return REAL(accept)(fd, from, size);
}

BEHIND(accept4)
int accept4(int fd, __SOCKADDR_ARG from, socklen_t *restrict size, int flags) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_RCVTIMEO, 0);
  if (due && !is_ready_in_time(page, fd, POLLIN, due, CALLER)) return -1;
  return REAL(accept4)(fd, from, size, flags);
}

BEHIND(connect)
int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t size) {
  struct page *page = attached();
  int64_t due = socket_due(page, fd, SO_SNDTIMEO, 0);
  if (!due) return REAL(connect)(fd, to, size);
  long flags = REAL(syscall)(SYS_fcntl, fd, F_GETFL);
  REAL(syscall)(SYS_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
  int failed = REAL(connect)(fd, to, size), error = errno;
  REAL(syscall)(SYS_fcntl, fd, F_SETFL, flags);
  errno = error;
  if (failed && error == EAGAIN) return REAL(connect)(fd, to, size); /* a full Unix socket */
  if (!failed || error != EINPROGRESS) return failed;
  if (!is_ready_in_time(page, fd, POLLOUT, due, CALLER)) {
    if (errno == EAGAIN) errno = EINPROGRESS; /* as the kernel tells of the timeout */
    return -1;
  }
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) || !error) return 0;
  errno = error;
  return -1;
}

/* -- Mutexes and locks of readers and writers -- */

BEHIND(pthread_mutex_clocklock)
BEHIND(pthread_mutex_timedlock)
BEHIND(pthread_rwlock_clockrdlock)
BEHIND(pthread_rwlock_clockwrlock)
BEHIND(pthread_rwlock_timedrdlock)
BEHIND(pthread_rwlock_timedwrlock)

typedef int (*lock_until)(void *lock, clockid_t clock, const struct timespec *until);

/* Neither a signal nor another thread can end such a wait. So it is one of many short ones. */
static int lock_for(struct page *page, lock_until take, void *lock, clockid_t clock,
                    const struct timespec *until, const void *caller) {
  struct timespec now = timespec_of(machine_ns(CLOCK_MONOTONIC));
  int error = take(lock, CLOCK_MONOTONIC, &now); /* most are free */
  if (error != ETIMEDOUT) return error;
  int64_t due = monotonic_ns(page, clock, nanoseconds(until));
  struct slot *slot = begin_wait(page, MUTEX, due, NULL, caller);
  do {
    int64_t left = left_of(page, due);
    struct timespec slice =
        timespec_of(machine_ns(CLOCK_MONOTONIC) + (left < SLICE_NS ? left : SLICE_NS));
    error = take(lock, CLOCK_MONOTONIC, &slice);
  } while (error == ETIMEDOUT && world_ns(page) < due);
  end_wait(slot, error == ETIMEDOUT);
  return error;
}

#define LOCKS(type, name, timed)                                                            \
  static int behind_any_##name(void *lock, clockid_t clock, const struct timespec *until) { \
    return REAL(name)(lock, clock, until);                                                  \
  }                                                                                         \
  int name(type *lock, clockid_t clock, const struct timespec *until) {                     \
    struct page *page = attached();                                                         \
    if (!page || !is_time(until) || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))  \
      return REAL(name)(lock, clock, until);                                                \
    return lock_for(page, behind_any_##name, lock, clock, until, __builtin_return_address(0)); \
  }                                                                                         \
  int timed(type *restrict lock, const struct timespec *restrict until) {                   \
    struct page *page = attached();                                                         \
    if (!page || !is_time(until)) return REAL(timed)(lock, until);                          \
    return lock_for(page, behind_any_##name, lock, CLOCK_REALTIME, until,                   \
                    __builtin_return_address(0));                                           \
  }

LOCKS(pthread_mutex_t, pthread_mutex_clocklock, pthread_mutex_timedlock)
LOCKS(pthread_rwlock_t, pthread_rwlock_clockrdlock, pthread_rwlock_timedrdlock)
LOCKS(pthread_rwlock_t, pthread_rwlock_clockwrlock, pthread_rwlock_timedwrlock)

/* -- Which page -- */

static void in_child(void) {
  mine = NULL; /* its slot is that of the thread that has forked it */
  pthread_setspecific(leaving, NULL);
  /* Alarms are not inherited; a timer that is a descriptor is followed by the process that has set it. */
  memset(timers, 0, sizeof timers);
  atomic_store(&timers_lock, 0);
  atomic_store(&is_any_timer, 0);
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
  struct sigaction action = {.sa_sigaction = nudge,
                             .sa_flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK};
  sigfillset(&action.sa_mask);
  if (memcmp(found->magic, MAGIC, sizeof MAGIC - 1) ||
      sigaction((int)found->signal, &action, NULL)) {
    munmap(found, sizeof(struct page));
    return EINVAL;
  }
  atomic_store(&current, found);
  unblock(found);
  return 0;
}

static int find_python(struct dl_phdr_info *object, size_t size, void *symbol) {
  uintptr_t begins = UINTPTR_MAX, ends = 0, at = (uintptr_t)symbol;
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    uintptr_t from = object->dlpi_addr + part->p_vaddr;
    if (part->p_type != PT_LOAD) continue;
    if (from < begins) begins = from;
    if (from + part->p_memsz > ends) ends = from + part->p_memsz;
  }
  if (at < begins || at >= ends) return 0;
  python_begins = begins;
  python_ends = ends;
  return 1;
}

__attribute__((constructor)) static void begin(void) {
  int kept = errno;
  void *symbol = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  if (symbol) dl_iterate_phdr(find_python, symbol);
  pthread_key_create(&leaving, leave);
  pthread_atfork(NULL, NULL, in_child);
  const char *path = getenv("PYTEST_MULTIHOST_CLOCK_PAGE");
  /* A page that is gone is no reason to fail. */
  if (path && *path && !multihost_clock_attach(path)) {
    reclaim(attached(), 0);
    inherit_alarm(attached());
  }
  errno = kept;
}
