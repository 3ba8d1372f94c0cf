/* Slow, failing and short file I/O, for every caller of the C library in this process.
 *
 * The dynamic linker loads a preloaded library (LD_PRELOAD, ld.so(8)) before all others, so calls of
 * open(), read(), write(), ... from Python and from C++ libraries alike resolve to the functions
 * below; each applies the rules and then calls the next definition of its name (dlsym(RTLD_NEXT)),
 * that of the C library. The rules are in a page of shared memory, see __init__.py; its layout is struct
 * page below. While there are none, a call costs two loads and a branch.
 *
 * On the path of a call nothing is allocated and nothing is locked, so it is safe in a signal handler
 * and between fork and exec, where a lock may be held by a thread that does not exist in the child.
 * There is no cache from descriptors to paths: a readlink() below /proc takes microseconds, and is
 * right after a rename, a dup, or a descriptor that was passed through a socket.
 *
 * Not reached: programs without this C library (Go, musl, static ones), io_uring, aio_read(), pages
 * of a mapped file that are read when they are touched, fgetc() and fscanf(), and calls inside of the C
 * library, which do not go through the dynamic linker.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { RULES = 16, SPARED = 16, GLOB_BYTES = 512, PIECES = 64 };
enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, MAP = 16, WHOLE = 1 << 16, SHORT = 1 << 17 };

#define MAGIC "OISHIM2"
#define SECOND 1000000000ull
#define SLICE 50000000ull /* a sleeping thread checks this often whether its rule is removed */
#define CREDIT 2000000ull /* sleeps end late; so much may be caught up on, or the rate is too low */

struct rule {
  uint32_t ops;
  int32_t error;
  uint32_t spared, reserved;
  uint64_t delay_ns, bytes_per_s;
  _Atomic uint64_t serial; /* incremented before the rule is rewritten */
  /* Counters, written here and read by any process. */
  _Atomic uint64_t struck, bytes, slept_ns, first_ns, busy_until_ns;
  char glob[GLOB_BYTES];
  char spare[SPARED][GLOB_BYTES];
};

struct page {
  char magic[8];
  _Atomic uint32_t active; /* a bit for each rule, set when all else of it is written */
  uint32_t reserved[13];
  struct rule rules[RULES];
};

/* What the rules do to one call. `rules` has a bit for each rule that is applied. */
struct strike {
  uint32_t rules;
  int error, is_short;
};

static struct page nothing;
static _Atomic(struct page *) current = &nothing;

/* -- The functions of the C library behind those that are defined here -- */

static void *find(_Atomic(void *) *slot, const char *name) {
  void *found = atomic_load_explicit(slot, memory_order_relaxed);
  if (!found) {
    found = dlsym(RTLD_NEXT, name);
    atomic_store_explicit(slot, found, memory_order_relaxed);
  }
  return found;
}

#define BEHIND(name) static _Atomic(void *) behind_##name;
#define REAL(name) ((__typeof__(&name))find(&behind_##name, #name))

/* -- Time -- */

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* Sleep until `due`, or until the rule is removed or rewritten. A signal does not shorten it, as it
   does not shorten the wait for a disk. With WHOLE it is one system call: seen from outside, one
   long wait. That lasts whatever becomes of the rule. */
static void sleep_until(struct page *page, int index, uint64_t due) {
  struct rule *rule = &page->rules[index];
  uint64_t serial = atomic_load(&rule->serial);
  uint64_t began = now_ns(), now = began;
  int whole = (rule->ops & WHOLE) != 0;
  while (now < due && (whole || (atomic_load(&page->active) >> index & 1 &&
                                 atomic_load(&rule->serial) == serial))) {
    uint64_t until = !whole && due - now > SLICE ? now + SLICE : due;
    struct timespec at = {(time_t)(until / SECOND), (long)(until % SECOND)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    now = now_ns();
  }
  atomic_fetch_add(&rule->slept_ns, now - began);
}

/* -- Paths -- */

static const char *next_character(const char *text) {
  do text++;
  while ((*text & 0xC0) == 0x80); /* the rest of a character in UTF-8 */
  return text;
}

/* Take a character off `text`. As numbers, its UTF-8 bytes order as the characters themselves do. */
static uint32_t take(const char **text) {
  const char *end = next_character(*text);
  uint32_t character = 0;
  while (*text < end) character = character << 8 | (unsigned char)*(*text)++;
  return character;
}

/* Match a character with a set, `[a-z]` or `[!a-z]`, and step past it; -1: this is no set. */
static int in_set(const char **pattern, uint32_t character) {
  const char *at = *pattern + 1;
  int negated = *at == '!', found = 0;
  at += negated;
  for (const char *start = at; *at && (*at != ']' || at == start);) {
    uint32_t low = take(&at), high = low;
    if (at[0] == '-' && at[1] && at[1] != ']') {
      at++;
      high = take(&at);
    }
    found |= low <= character && character <= high;
  }
  if (!*at) return -1;
  *pattern = at + 1;
  return found != negated;
}

/* As Python's fnmatch.fnmatchcase(): `*` matches slashes, too. On a mismatch, the last `*` takes one
   character more, so there is no recursion and no more than length times length steps. */
static int matches(const char *pattern, const char *text) {
  const char *star = NULL, *resume = NULL;
  while (*text) {
    const char *rest = pattern, *behind = text;
    if (*pattern == '*') {
      star = ++pattern;
      resume = text;
      continue;
    }
    uint32_t character = take(&behind);
    int same = *pattern == '[' ? in_set(&rest, character) : -1;
    if (same < 0 && *pattern) same = character == take(&rest) || *pattern == '?';
    if (same > 0) {
      pattern = rest;
      text = behind;
    } else if (star) {
      pattern = star;
      text = resume = next_character(resume);
    } else {
      return 0;
    }
  }
  while (*pattern == '*') pattern++;
  return !*pattern;
}

/* Write the path of an open file into `path`; 0 if the descriptor is no file. Without snprintf(),
   which is not safe in a signal handler. */
static int path_of(int fd, char *path) {
  char link[32] = "/proc/self/fd/";
  char digits[12];
  int count = 0, end = 14;
  if (fd < 0) return 0;
  do digits[count++] = (char)('0' + fd % 10);
  while (fd /= 10);
  while (count) link[end++] = digits[--count];
  link[end] = 0;
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  if (length <= 0 || path[0] != '/') return 0; /* a pipe or a socket */
  path[length] = 0;
  static const char gone[] = " (deleted)";
  size_t tail = sizeof gone - 1;
  if ((size_t)length > tail && !strcmp(path + length - tail, gone)) path[length - tail] = 0;
  return strncmp(path, "/memfd:", 7) != 0;
}

static int path_at(int directory, const char *name, int flags, char *path) {
  int fd = (int)syscall(SYS_openat, directory, name, O_PATH | O_CLOEXEC | flags);
  if (fd < 0) return 0;
  int found = path_of(fd, path);
  syscall(SYS_close, fd);
  return found;
}

/* Write the real path of `name` into `path`. The file need not exist: open() may be about to create
   it; then the directory is resolved. System calls are made directly, past the functions below. */
static int path_named(int directory, const char *name, char *path) {
  char parent[PATH_MAX];
  if (!name || path_at(directory, name, 0, path)) return name != NULL;
  const char *slash = strrchr(name, '/');
  const char *base = slash ? slash + 1 : name;
  size_t length = (size_t)(base - name);
  if (length >= sizeof parent) return 0;
  memcpy(parent, name, length);
  parent[length] = 0;
  if (!path_at(directory, length ? parent : ".", O_DIRECTORY, path)) return 0;
  size_t end = strlen(path);
  if (end + 1 + strlen(base) >= PATH_MAX) return 0;
  if (path[end - 1] != '/') path[end++] = '/';
  strcpy(path + end, base);
  return 1;
}

/* -- Rules -- */

static struct page *armed(void) {
  struct page *page = atomic_load_explicit(&current, memory_order_relaxed);
  if (__builtin_expect(!atomic_load_explicit(&page->active, memory_order_relaxed), 1)) return NULL;
  atomic_thread_fence(memory_order_acquire);
  return page;
}

static int concerns(const struct rule *rule, uint32_t op, const char *path) {
  if (!(rule->ops & op) || !matches(rule->glob, path)) return 0;
  for (uint32_t i = 0; i < rule->spared && i < SPARED; i++)
    if (matches(rule->spare[i], path)) return 0;
  return 1;
}

static void strike_by(struct page *page, int index, uint32_t op, struct strike *strike) {
  struct rule *rule = &page->rules[index];
  uint64_t never = 0, now = now_ns();
  atomic_compare_exchange_strong(&rule->first_ns, &never, now);
  atomic_fetch_add(&rule->struck, 1);
  strike->rules |= 1u << index;
  if (rule->error && !strike->error) strike->error = rule->error;
  if (op == READ && rule->ops & SHORT) strike->is_short = 1;
  if (rule->delay_ns) sleep_until(page, index, now + rule->delay_ns);
}

/* Apply the rules before a call. Returns -1 if it is not to be made, with errno set.
   The page may be rewritten at any time, without a lock: a rule whose serial has changed while its
   globs were matched may have been a mixture of two, and is not applied. */
static int before_path(struct page *page, uint32_t op, const char *path, struct strike *strike) {
  int kept = errno;
  uint32_t active = atomic_load(&page->active);
  for (int index = 0; index < RULES; index++) {
    struct rule *rule = &page->rules[index];
    uint64_t serial = atomic_load(&rule->serial);
    if (!(active >> index & 1) || !concerns(rule, op, path)) continue;
    if (atomic_load(&rule->serial) != serial) continue;
    strike_by(page, index, op, strike);
  }
  errno = strike->error ? strike->error : kept;
  return strike->error ? -1 : 0;
}

static int before(struct page *page, uint32_t op, int fd, struct strike *strike) {
  char path[PATH_MAX];
  int kept = errno;
  int is_file = path_of(fd, path);
  errno = kept;
  *strike = (struct strike){0};
  return is_file ? before_path(page, op, path, strike) : 0;
}

static int before_open(struct page *page, int directory, const char *name) {
  char path[PATH_MAX];
  struct strike strike = {0};
  int kept = errno;
  int found = path_named(directory, name, path);
  errno = kept;
  return found ? before_path(page, OPEN, path, &strike) : 0;
}

/* Reserve the time of `bytes` in the stream that all callers of a rule share, children included;
   returns when it ends. */
static uint64_t stream(struct rule *rule, uint64_t bytes) {
  uint64_t cost = (uint64_t)((double)bytes * 1e9 / (double)rule->bytes_per_s);
  uint64_t free_at = atomic_load(&rule->busy_until_ns), due;
  do {
    uint64_t earliest = now_ns() - CREDIT;
    due = (free_at > earliest ? free_at : earliest) + cost;
  } while (!atomic_compare_exchange_weak(&rule->busy_until_ns, &free_at, due));
  return due;
}

/* Apply the rules after a call that has moved `bytes`. */
static void after(struct page *page, const struct strike *strike, ssize_t bytes) {
  int kept = errno;
  for (int index = 0; bytes > 0 && index < RULES; index++) {
    struct rule *rule = &page->rules[index];
    if (!(strike->rules >> index & 1)) continue;
    atomic_fetch_add(&rule->bytes, (uint64_t)bytes);
    if (rule->bytes_per_s) sleep_until(page, index, stream(rule, (uint64_t)bytes));
  }
  errno = kept;
}

static size_t cut(const struct strike *strike, size_t count) {
  return strike->is_short ? count - count / 2 : count;
}

/* Copy as many of the pieces of a vector as a short read may fill; returns how many. */
static int cut_pieces(const struct strike *strike, const struct iovec **pieces, int count,
                      struct iovec *copy) {
  size_t total = 0;
  int kept = 0;
  if (!strike->is_short || count < 0) return count;
  for (int i = 0; i < count; i++) total += (*pieces)[i].iov_len;
  for (size_t left = cut(strike, total); left && kept < count && kept < PIECES; kept++) {
    copy[kept] = (*pieces)[kept];
    if (copy[kept].iov_len > left) copy[kept].iov_len = left;
    left -= copy[kept].iov_len;
  }
  if (kept) *pieces = copy;
  return kept ? kept : count;
}

/* -- Which page -- */

/* Follow the rules in the page at `path` from now on; NULL or "": none. Returns an errno, or 0.
 * The previous page stays mapped: another thread may be reading it. */
int multihost_shim_attach(const char *path) {
  struct stat status;
  if (!path || !*path) {
    atomic_store(&current, &nothing);
    return 0;
  }
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno;
  void *found = MAP_FAILED;
  if (!fstat(fd, &status) && (size_t)status.st_size >= sizeof(struct page))
    found = (void *)syscall(SYS_mmap, NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED,
                            fd, 0);
  syscall(SYS_close, fd);
  if (found == MAP_FAILED) return EINVAL;
  if (memcmp(((struct page *)found)->magic, MAGIC, sizeof MAGIC)) {
    munmap(found, sizeof(struct page));
    return EINVAL;
  }
  atomic_store(&current, found);
  return 0;
}

__attribute__((constructor)) static void begin(void) {
  int kept = errno;
  const char *path = getenv("PYTEST_MULTIHOST_IO_SHIM");
  if (path) multihost_shim_attach(path); /* a page that is gone is no reason to fail */
  errno = kept;
}

/* -- Calls that move bytes -- */

#define MOVES(result, name, op, fd, parameters, arguments) \
  BEHIND(name)                                             \
  result name parameters {                                 \
    struct page *page = armed();                           \
    struct strike strike = {0};                            \
    if (page && before(page, op, fd, &strike)) return -1;  \
    result moved = REAL(name) arguments;                   \
    if (page) after(page, &strike, moved);                 \
    return moved;                                          \
  }

#define MOVES_PIECES(name, op, parameters, arguments)     \
  BEHIND(name)                                            \
  ssize_t name parameters {                               \
    struct page *page = armed();                          \
    struct strike strike = {0};                           \
    struct iovec copy[PIECES];                            \
    if (page && before(page, op, fd, &strike)) return -1; \
    n = cut_pieces(&strike, &v, n, copy);                 \
    ssize_t moved = REAL(name) arguments;                 \
    if (page) after(page, &strike, moved);                \
    return moved;                                         \
  }

/* On 64-bit systems, and there are no others with torch or jax, off_t is off64_t. */
#define SAME(name64, name) extern __typeof__(name64) name64 __attribute__((alias(#name)));

#define CUT cut(&strike, n)

MOVES(ssize_t, read, READ, fd, (int fd, void *b, size_t n), (fd, b, CUT))
MOVES(ssize_t, pread, READ, fd, (int fd, void *b, size_t n, off_t o), (fd, b, CUT, o))
MOVES(ssize_t, write, WRITE, fd, (int fd, const void *b, size_t n), (fd, b, n))
MOVES(ssize_t, pwrite, WRITE, fd, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
SAME(pread64, pread)
SAME(pwrite64, pwrite)

MOVES_PIECES(readv, READ, (int fd, const struct iovec *v, int n), (fd, v, n))
MOVES_PIECES(preadv, READ, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
MOVES_PIECES(preadv2, READ, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f))
MOVES_PIECES(writev, WRITE, (int fd, const struct iovec *v, int n), (fd, v, n))
MOVES_PIECES(pwritev, WRITE, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
MOVES_PIECES(pwritev2, WRITE, (int fd, const struct iovec *v, int n, off_t o, int f),
             (fd, v, n, o, f))
SAME(preadv64, preadv)
SAME(preadv64v2, preadv2)
SAME(pwritev64, pwritev)
SAME(pwritev64v2, pwritev2)

MOVES(int, fsync, SYNC, fd, (int fd), (fd))
MOVES(int, fdatasync, SYNC, fd, (int fd), (fd))
MOVES(int, sync_file_range, SYNC, fd, (int fd, off64_t o, off64_t n, unsigned f), (fd, o, n, f))

/* What compilers make of read() and pread() with _FORTIFY_SOURCE, into a buffer whose size they know.
 * The check is left to the C library. */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);
MOVES(ssize_t, __read_chk, READ, fd, (int fd, void *b, size_t n, size_t s), (fd, b, CUT, s))
MOVES(ssize_t, __pread_chk, READ, fd, (int fd, void *b, size_t n, off_t o, size_t s),
      (fd, b, CUT, o, s))
SAME(__pread64_chk, __pread_chk)

/* From file to file: a read of the one and a write of the other. */
#define COPIES(name, to, from, parameters, arguments)                            \
  BEHIND(name)                                                                   \
  ssize_t name parameters {                                                      \
    struct page *page = armed();                                                 \
    struct strike strike = {0}, writing = {0};                                   \
    if (page && before(page, READ, from, &strike)) return -1;                    \
    if (page && before(page, WRITE, to, &writing)) return -1;                    \
    ssize_t moved = REAL(name) arguments;                                        \
    if (page) after(page, &strike, moved);                                       \
    if (page) after(page, &writing, moved);                                      \
    return moved;                                                                \
  }

COPIES(sendfile, to, from, (int to, int from, off_t *o, size_t n), (to, from, o, CUT))
COPIES(copy_file_range, to, from,
       (int from, off64_t *i, int to, off64_t *o, size_t n, unsigned f), (from, i, to, o, CUT, f))
SAME(sendfile64, sendfile)

/* -- Mapping: the call itself, not the pages that are read later -- */

BEHIND(mmap)
void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset) {
  struct page *page = fd < 0 || flags & MAP_ANONYMOUS ? NULL : armed();
  struct strike strike;
  if (page && before(page, MAP, fd, &strike)) return MAP_FAILED;
  return REAL(mmap)(address, n, protection, flags, fd, offset);
}
SAME(mmap64, mmap)

/* -- Opening -- */

#define OPENS(name, parameters, arguments, directory)                              \
  BEHIND(name)                                                                     \
  int name parameters {                                                            \
    mode_t mode = 0;                                                               \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                     \
      va_list rest;                                                                \
      va_start(rest, flags);                                                       \
      mode = va_arg(rest, mode_t);                                                 \
      va_end(rest);                                                                \
    }                                                                              \
    struct page *page = armed();                                                   \
    if (page && before_open(page, directory, path)) return -1;                     \
    return REAL(name) arguments;                                                   \
  }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPENS(openat, (int where, const char *path, int flags, ...), (where, path, flags, mode), where)
SAME(open64, open)
SAME(openat64, openat)

#define OPENS_PLAINLY(result, failed, name, parameters, arguments, directory) \
  BEHIND(name)                                                                \
  result name parameters {                                                    \
    struct page *page = armed();                                              \
    if (page && before_open(page, directory, path)) return failed;            \
    return REAL(name) arguments;                                              \
  }

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
OPENS_PLAINLY(int, -1, __open_2, (const char *path, int flags), (path, flags), AT_FDCWD)
OPENS_PLAINLY(int, -1, __openat_2, (int where, const char *path, int f), (where, path, f), where)
OPENS_PLAINLY(int, -1, creat, (const char *path, mode_t mode), (path, mode), AT_FDCWD)
OPENS_PLAINLY(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode), AT_FDCWD)
SAME(__open64_2, __open_2)
SAME(__openat64_2, __openat_2)
SAME(creat64, creat)
SAME(fopen64, fopen)

/* -- Buffered files: the C library reads and writes them by calls inside of itself, which cannot be
 * intercepted. So fread() and the like count as one call when the buffer does not suffice. A short
 * read is of no use here: the C library reads on. -- */

static size_t held(const FILE *file) { return (size_t)(file->_IO_read_end - file->_IO_read_ptr); }

static int fails(FILE *file) {
  file->_flags |= _IO_ERR_SEEN;
  return 1;
}

static int before_buffered(struct page *page, uint32_t op, FILE *file, struct strike *strike) {
  return before(page, op, fileno_unlocked(file), strike) ? fails(file) : 0;
}

#undef fread_unlocked
#undef fwrite_unlocked

#define READS_ITEMS(name, parameters, arguments)                               \
  BEHIND(name)                                                                 \
  size_t name parameters {                                                     \
    struct page *page = armed();                                               \
    struct strike strike;                                                      \
    size_t kept = held(file);                                                  \
    if (!page || size * n <= kept) return REAL(name) arguments;                \
    if (before_buffered(page, READ, file, &strike)) return 0;                  \
    size_t moved = REAL(name) arguments;                                       \
    after(page, &strike, (ssize_t)(moved * size) - (ssize_t)kept);             \
    return moved;                                                              \
  }

size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
size_t __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);
READS_ITEMS(fread, (void *b, size_t size, size_t n, FILE *file), (b, size, n, file))
READS_ITEMS(fread_unlocked, (void *b, size_t size, size_t n, FILE *file), (b, size, n, file))
READS_ITEMS(__fread_chk, (void *b, size_t room, size_t size, size_t n, FILE *file),
            (b, room, size, n, file))
READS_ITEMS(__fread_unlocked_chk, (void *b, size_t room, size_t size, size_t n, FILE *file),
            (b, room, size, n, file))

#define READS_LINE(result, failed, length, name, parameters, arguments, end)          \
  BEHIND(name)                                                                        \
  result name parameters {                                                            \
    struct page *page = armed();                                                      \
    struct strike strike;                                                             \
    size_t kept = held(file);                                                         \
    if (!page || (kept && memchr(file->_IO_read_ptr, end, kept)))                     \
      return REAL(name) arguments;                                                    \
    if (before_buffered(page, READ, file, &strike)) return failed;                    \
    result found = REAL(name) arguments;                                              \
    after(page, &strike, length);                                                     \
    return found;                                                                     \
  }

READS_LINE(char *, NULL, found ? (ssize_t)strlen(found) : 0, fgets, (char *b, int n, FILE *file),
           (b, n, file), '\n')
READS_LINE(ssize_t, -1, found, getline, (char **b, size_t *n, FILE *file), (b, n, file), '\n')
READS_LINE(ssize_t, -1, found, getdelim, (char **b, size_t *n, int end, FILE *file),
           (b, n, end, file), end)

static size_t room(const FILE *file) {
  size_t left = (size_t)(file->_IO_buf_end - file->_IO_write_ptr);
  return file->_IO_buf_base && file->_IO_write_ptr ? left : BUFSIZ / 2;
}

#define WRITES_ITEMS(name)                                                     \
  BEHIND(name)                                                                 \
  size_t name(const void *b, size_t size, size_t n, FILE *file) {              \
    struct page *page = armed();                                               \
    struct strike strike;                                                      \
    if (!page || size * n <= room(file)) return REAL(name)(b, size, n, file);  \
    if (before_buffered(page, WRITE, file, &strike)) return 0;                 \
    size_t moved = REAL(name)(b, size, n, file);                               \
    after(page, &strike, (ssize_t)(moved * size));                             \
    return moved;                                                              \
  }

WRITES_ITEMS(fwrite)
WRITES_ITEMS(fwrite_unlocked)

BEHIND(fflush)
int fflush(FILE *file) {
  struct page *page = armed();
  struct strike strike;
  size_t pending = file && page ? __fpending(file) : 0;
  if (!pending) return REAL(fflush)(file);
  if (before_buffered(page, WRITE, file, &strike)) return EOF;
  int done = REAL(fflush)(file);
  after(page, &strike, done ? 0 : (ssize_t)pending);
  return done;
}

/* Closes in any case, as the C library does when the last bytes cannot be written. */
BEHIND(fclose)
int fclose(FILE *file) {
  struct page *page = armed();
  struct strike strike;
  size_t pending = page ? __fpending(file) : 0;
  if (!pending) return REAL(fclose)(file);
  int failed = before(page, WRITE, fileno_unlocked(file), &strike);
  if (failed) __fpurge(file);
  int done = REAL(fclose)(file);
  if (failed) errno = strike.error;
  else after(page, &strike, (ssize_t)pending);
  return failed ? EOF : done;
}
