/* The hot path of the recorder for torch, for the calls that are made a thousand times.
 *
 * What is recorded, and how, is said in Python: torch_calls.py, torch_works.py, recorder.py and
 * watch/slots.py. This does the same, to the byte, for the common call: a method of exactly the bound
 * class, in a group that is known, with nobody listening and no batch being collected. Whatever else
 * comes goes to the function in Python that each wrapper here has beside the original; either notes
 * a call, never both. So nothing here has to be complete, but all of it has to be equal.
 *
 * What both sides need is held once: counters are the same iterators, what is launched stands in the
 * same dict, and the state of a thread is Local, which Python uses as well. Pages are found through
 * the recorder at each call, since they are replaced: in a forked child, and when a rank is armed.
 *
 * All of it runs under the interpreter's lock, which only the original gives up.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030E0000 && __has_include(<internal/pycore_frame.h>)
/* Making an object of each frame that is looked at takes as long as all the rest. */
#define HAS_BARE_FRAMES
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "it relies on the interpreter's lock"
#endif

/* Between two calls the caches are used by others: what counts is how few lines and pages of memory a
 * call touches. So tables are small, and each entry has beside it what was found for it last. */
enum { ENTRIES = 16, DETAILS = 64, DIMENSIONS = 6, PLACES = 1024, STEPS = 5, NESTED = 2,
       SETS = 64, WAYS = 4 };

#define SELDOM __attribute__((cold, noinline))

/* A record as watch/slots.py packs it; what it is called there is checked when a Core is made. */
#define RECORD_FORMAT "<QQQIIIIIIIIIIiiQ"
struct call {
  uint32_t name, kind, group;
  int32_t peer, root;
};
struct where {
  uint32_t file, line, function;
};
struct record {
  uint64_t began, ended, waited;
  uint32_t sequence, detail, thread;
  struct where where;
  uint32_t flags;
  struct call call;
  uint64_t number;
};
_Static_assert(sizeof(struct record) == 80, "a record has no gaps");

static PyObject *text_asyncop, *text_rootrank, *text_dtype, *text_shape, *text_find, *text_fail;
static PyObject *text_counting, *text_numbers, *text_opts;
static PyObject *text_data, *text_sequence, *text_count_at, *text_pg, *text_fail_wait;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static size_t mix(size_t one, size_t other) {
  size_t mixed = (one ^ (other + 0x9E3779B97F4A7C15u + (one << 6) + (one >> 2)));
  return mixed * 0xFF51AFD7ED558CCDu;
}

static size_t address_hash(const void *address) { return mix((size_t)address >> 4, 0); }

/* Counter: an itertools.count that is asked here without making a number of it. */

typedef struct {
  PyObject_HEAD long long next;
} Counter;

static PyObject *counter_next(PyObject *self) {
  return PyLong_FromLongLong(((Counter *)self)->next++);
}

static PyObject *counter_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  long long first = 0;
  if (named && PyDict_GET_SIZE(named)) return PyErr_Format(PyExc_TypeError, "a number alone");
  if (!PyArg_ParseTuple(arguments, "|L", &first)) return NULL;
  Counter *self = (Counter *)type->tp_alloc(type, 0);
  if (self) self->next = first;
  return (PyObject *)self;
}

static PyTypeObject Counter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pytest_multihost._fast.Counter",
    .tp_doc = "Counts from a number on, as itertools.count does.",
    .tp_basicsize = sizeof(Counter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = counter_new,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = counter_next,
};

static int whole_number(PyObject *object, long long *value) {
  if (!object || !PyLong_CheckExact(object)) return 0;
  *value = PyLong_AsLongLong(object);
  if (*value != -1 || !PyErr_Occurred()) return 1;
  PyErr_Clear();
  return 0;
}

/* An error in recording is no error of the test; but what is more than an Exception, such as what a
 * handler of signals raises while Python is asked, is the test's. 0: none is set any more; -1: one is. */
static int recover(void) {
  if (!PyErr_Occurred()) return 0;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

/* Local: the last synchronous call of each thread, and its batch. */

typedef struct {
  PyObject_HEAD uintptr_t work;
  long long at;
  PyObject *coalesced; /* NULL: there is no batch */
  PyObject *options;   /* on which asyncOp has just been set, to `is_async`: see Field; or NULL */
  int is_async;
} LocalState;

typedef struct {
  PyObject_HEAD uint64_t last_thread; /* no two threads ever have the same */
  LocalState *last;
} Local;

static void local_state_dealloc(PyObject *self) {
  Py_XDECREF(((LocalState *)self)->coalesced);
  Py_XDECREF(((LocalState *)self)->options);
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject LocalState_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pytest_multihost._fast.LocalState",
    .tp_basicsize = sizeof(LocalState),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = local_state_dealloc,
};

/* The calling thread's state; NULL with an exception if there is no memory. */
static SELDOM LocalState *local_of(Local *self, uint64_t thread) {
  PyObject *states = PyThreadState_GetDict(); /* goes with the thread */
  if (!states) {
    PyErr_SetString(PyExc_RuntimeError, "this thread has no state");
    return NULL;
  }
  LocalState *state = (LocalState *)PyDict_GetItemWithError(states, (PyObject *)self);
  if (!state) {
    if (PyErr_Occurred()) return NULL;
    state = PyObject_New(LocalState, &LocalState_Type);
    if (!state) return NULL;
    state->work = 0;
    state->at = 0;
    state->coalesced = NULL;
    state->options = NULL;
    int failed = PyDict_SetItem(states, (PyObject *)self, (PyObject *)state);
    Py_DECREF(state); /* the dict has it */
    if (failed) return NULL;
  }
  Py_INCREF(state);
  Py_XSETREF(self->last, state);
  self->last_thread = thread;
  return state;
}

static LocalState *local_at(Local *self, PyThreadState *thread) {
  if (self->last && self->last_thread == thread->id) return self->last;
  return local_of(self, thread->id);
}

static LocalState *local_now(Local *self) { return local_at(self, PyThreadState_Get()); }

static PyObject *local_get_work(PyObject *self, void *unused) {
  (void)unused;
  LocalState *state = local_now((Local *)self);
  return state ? PyLong_FromVoidPtr((void *)state->work) : NULL;
}

static int local_set_work(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  LocalState *state = local_now((Local *)self);
  void *work = value && state ? PyLong_AsVoidPtr(value) : NULL;
  if (!value) PyErr_SetString(PyExc_AttributeError, "it cannot be deleted");
  if (!value || !state || PyErr_Occurred()) return -1;
  state->work = (uintptr_t)work;
  return 0;
}

static PyObject *local_get_at(PyObject *self, void *unused) {
  (void)unused;
  LocalState *state = local_now((Local *)self);
  return state ? PyLong_FromLongLong(state->at) : NULL;
}

static int local_set_at(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  LocalState *state = local_now((Local *)self);
  long long at = value && state ? PyLong_AsLongLong(value) : -1;
  if (!value) PyErr_SetString(PyExc_AttributeError, "it cannot be deleted");
  if (!value || !state || PyErr_Occurred()) return -1;
  state->at = at;
  return 0;
}

static PyObject *local_get_coalesced(PyObject *self, void *unused) {
  (void)unused;
  LocalState *state = local_now((Local *)self);
  if (!state) return NULL;
  PyObject *batch = state->coalesced ? state->coalesced : Py_None;
  Py_INCREF(batch);
  return batch;
}

static int local_set_coalesced(PyObject *self, PyObject *value, void *unused) {
  (void)unused;
  LocalState *state = local_now((Local *)self);
  if (!value) PyErr_SetString(PyExc_AttributeError, "it cannot be deleted");
  if (!value || !state) return -1;
  PyObject *batch = value == Py_None ? NULL : value;
  Py_XINCREF(batch);
  Py_XSETREF(state->coalesced, batch);
  return 0;
}

static void local_dealloc(PyObject *self) {
  Py_XDECREF(((Local *)self)->last);
  Py_TYPE(self)->tp_free(self);
}

static PyGetSetDef local_getset[] = {
    {"work", local_get_work, local_set_work, "Address of its work; 0: none.", NULL},
    {"at", local_get_at, local_set_at, "Where it is noted.", NULL},
    {"coalesced", local_get_coalesced, local_set_coalesced, "The places of its batch.", NULL},
    {0},
};

static PyTypeObject Local_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pytest_multihost._fast.Local",
    .tp_doc = "The last synchronous call of the calling thread: see torch_works.py.",
    .tp_basicsize = sizeof(Local),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = local_dealloc,
    .tp_getset = local_getset,
};

/* Field: asyncOp of torch's options, a property that keeps in mind what this thread has just set it to
 * until its next call. To ask torch for it takes as long as all else that is done for a call. */

typedef struct { /* what it has beyond a property */
  PyObject *original;
  Local *local;
} Field;

static Field *field_of(PyObject *self) {
  return (Field *)((char *)self + PyProperty_Type.tp_basicsize);
}

static int field_set(PyObject *self, PyObject *options, PyObject *value) {
  if (PyProperty_Type.tp_descr_set(self, options, value)) return -1;
  LocalState *local = local_now(field_of(self)->local);
  if (!local) {
    PyErr_Clear();
  } else if (value && PyBool_Check(value)) {
    local->is_async = value == Py_True;
    Py_INCREF(options);
    Py_XSETREF(local->options, options);
  } else {
    Py_CLEAR(local->options);
  }
  return 0;
}

static PyObject *field_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"local", "original", NULL};
  PyObject *local, *original, *none = PyTuple_New(0);
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$O!O!", names, &Local_Type, &local,
                                   &PyProperty_Type, &original))
    return NULL;
  PyObject *self = none ? PyProperty_Type.tp_new(type, none, NULL) : NULL;
  PyObject *get = PyObject_GetAttrString(original, "fget");
  PyObject *set = get ? PyObject_GetAttrString(original, "fset") : NULL;
  PyObject *parts = self && set ? Py_BuildValue("OOOs", get, set, Py_None, type->tp_doc) : NULL;
  if (parts && !PyProperty_Type.tp_init(self, parts, NULL)) {
    Py_INCREF(original);
    Py_INCREF(local);
    *field_of(self) = (Field){original, (Local *)local};
  } else {
    Py_CLEAR(self);
  }
  PyObject *done[] = {none, get, set, parts};
  for (size_t each = 0; each < sizeof done / sizeof *done; each++) Py_XDECREF(done[each]);
  return self;
}

static int field_init(PyObject *self, PyObject *arguments, PyObject *named) {
  (void)self, (void)arguments, (void)named; /* field_new has done it */
  return 0;
}

static PyObject *field_get_wrapped(PyObject *self, void *unused) {
  (void)unused;
  Py_INCREF(field_of(self)->original);
  return field_of(self)->original;
}

static void field_dealloc(PyObject *self) {
  Py_CLEAR(field_of(self)->original);
  Py_CLEAR(field_of(self)->local);
  PyProperty_Type.tp_dealloc(self);
}

static PyGetSetDef field_getset[] = {
    {"__wrapped__", field_get_wrapped, NULL, "The property that it stands for.", NULL},
    {0},
};

static PyTypeObject Field_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pytest_multihost._fast.Field",
    .tp_doc = "A property that keeps in mind what it has been set to.",
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = field_new,
    .tp_init = field_init,
    .tp_getset = field_getset,
    .tp_descr_set = field_set,
    .tp_dealloc = field_dealloc,
};

/* Core: what the wrappers of one recorder share. */

struct place {        /* of code, and of the user's lines in it; two or more in a line of the cache */
  PyCodeObject *code; /* NULL: free */
  int lasti;          /* LIBRARY: all of it is somebody else's */
  struct where where;
};
enum { LIBRARY = -2 };

struct way { /* that was walked last: from what was called out to the user's line */
  int steps; /* 0: none */
  int lasti[STEPS];
  PyCodeObject *code[STEPS]; /* all of them stand among the places, and are alive */
  struct where where;
  unsigned long age;
};

struct detail {
  PyObject *dtype;  /* or NULL, and what the interchange of tensors calls it */
  uint32_t code, number; /* number 0: free */
  PyObject *prefix;
  Py_ssize_t dimensions, more;
  long long sizes[DIMENSIONS];
};

struct tensor { /* DLTensor of DLPack 1, whose table of functions torch.Tensor offers */
  void *data;
  int32_t device[2], dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *sizes, *strides;
  uint64_t offset;
};

struct tensor_functions { /* DLPackExchangeAPI */
  uint32_t major, minor;
  void *older, *others[3];
  int (*read_tensor)(void *tensor, struct tensor *read);
};

struct layout { /* in words of eight bytes: where the records begin, and the one that nobody reads */
  long long first, records, no_place;
};
enum { WORDS = sizeof(struct record) / 8 };

typedef struct {
  PyObject_HEAD PyObject *recorder, *works, *held, *details;
  Local *local;
  PyTypeObject *page_type, *tensor_type; /* NULL: not every tensor's sizes can be read in C */
  int (*read_tensor)(void *tensor, struct tensor *read);
  struct layout layout;
  Py_ssize_t page_at, on_begin_at, words_at, numbers_at, texts_at; /* of what the two have in slots */
  PyObject *page, *texts, *words; /* what is cached below is true of; NULL: nothing */
  Py_buffer view;
  unsigned long age; /* a higher one with another page: numbers of texts mean something else there */
  Py_ssize_t known;
  struct place places[PLACES];
  struct detail detail[DETAILS];
} Core;

static PyObject *slot(PyObject *owner, Py_ssize_t at) {
  return *(PyObject **)((char *)owner + at);
}

/* Return where a class with __slots__ keeps an attribute; -1 with an exception if it does not. */
static Py_ssize_t slot_offset(PyTypeObject *type, const char *name) {
  PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
  if (!found) return -1;
  Py_ssize_t at = -1;
  if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
    PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
    if (member->type == T_OBJECT_EX) at = member->offset;
  }
  Py_DECREF(found);
  if (at < 0) PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
  return at;
}

static SELDOM void core_forget(Core *self) {
  self->age++;
  self->known = 0;
  for (int each = 0; each < PLACES; each++) Py_CLEAR(self->places[each].code);
  for (int each = 0; each < DETAILS; each++) {
    self->detail[each].number = 0;
    Py_CLEAR(self->detail[each].dtype);
    Py_CLEAR(self->detail[each].prefix);
  }
  Py_CLEAR(self->page);
  Py_CLEAR(self->texts);
}

static void core_unmap(Core *self) {
  if (self->words) PyBuffer_Release(&self->view);
  Py_CLEAR(self->words);
}

/* Let a page count with what is asked here at no cost. Groups that it counts already go on as before. */
static SELDOM void count_in_c(Core *self, PyObject *page) {
  PyObject *numbers = slot(page, self->numbers_at);
  if (numbers && !Py_IS_TYPE(numbers, &Counter_Type)) {
    PyObject *next = PyIter_Next(numbers);
    PyObject *counter = next ? PyObject_CallOneArg((PyObject *)&Counter_Type, next) : NULL;
    if (counter) PyObject_SetAttr(page, text_numbers, counter);
    Py_XDECREF(next);
    Py_XDECREF(counter);
  }
  PyObject_SetAttr(page, text_counting, (PyObject *)&Counter_Type);
  PyErr_Clear();
}

static SELDOM int core_map_anew(Core *self, PyObject *page) {
  if (!page || Py_TYPE(page) != self->page_type) return 0;
  PyObject *words = slot(page, self->words_at), *texts = slot(page, self->texts_at);
  if (!words || !texts) return 0;
  if (page != self->page || texts != self->texts) {
    core_forget(self);
    Py_INCREF(page);
    self->page = page;
    Py_INCREF(texts);
    self->texts = texts;
    count_in_c(self, page);
  }
  if (words != self->words) {
    core_unmap(self);
    if (PyObject_GetBuffer(words, &self->view, PyBUF_FULL)) {
      PyErr_Clear();
      return 0;
    }
    Py_INCREF(words);
    self->words = words;
    if (self->view.len < (self->layout.no_place + WORDS) * 8) core_unmap(self);
  }
  return self->words != NULL;
}

/* Follow the recorder to the page it has now. 0: there is none to write to; no exception is set. */
static int core_map(Core *self) {
  if (!self->recorder) return 0; /* the collector has cleared it */
  PyObject *page = slot(self->recorder, self->page_at);
  if (page && page == self->page && self->words && slot(page, self->words_at) == self->words &&
      slot(page, self->texts_at) == self->texts)
    return 1;
  return core_map_anew(self, page);
}

static int is_place(Core *self, long long at) {
  return at >= self->layout.first && at <= self->layout.no_place;
}

static struct record *record_at(Core *self, long long at) {
  return (struct record *)((uint64_t *)self->view.buf + at);
}

/* Stores are made in their order: who reads the page does so at any moment. */
static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static void core_end(Core *self, long long at) {
  if (core_map(self) && is_place(self, at)) put(&record_at(self, at)->ended, now_ns());
}

static void core_leave(Core *self, long long at) {
  if (core_map(self) && is_place(self, at)) put(&record_at(self, at)->waited, 0);
}

/* Return the next number of an iterator; -1 with an exception. */
static long long next_of(PyObject *iterator) {
  if (Py_IS_TYPE(iterator, &Counter_Type)) return ((Counter *)iterator)->next++;
  PyObject *number = PyIter_Next(iterator);
  if (!number) {
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return -1;
  }
  long long value = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return value;
}

/* The user's line: as Recorder._where. */

static struct place *place_of(Core *self, PyCodeObject *code, int lasti) {
  size_t at = mix((size_t)code >> 4, (size_t)lasti);
  for (;; at++) {
    struct place *place = &self->places[at % PLACES];
    if (!place->code || (place->code == code && place->lasti == lasti)) return place;
  }
}

static void remember_place(Core *self, PyCodeObject *code, int lasti, const struct where *where) {
  if (self->known >= PLACES / 2) return;
  struct place *place = place_of(self, code, lasti);
  if (!place->code) {
    self->known++;
    Py_INCREF(code);
    place->code = code; /* alive, so that no other gets its address */
    place->lasti = lasti;
  }
  if (where) place->where = *where;
}

/* Ask Recorder._find. 1: this is the user's; 0: it is not; -1 with an exception. */
static SELDOM int ask_place(Core *self, PyFrameObject *frame, PyCodeObject *code, struct where *where) {
  PyObject *found = PyObject_CallMethodOneArg(self->recorder, text_find, (PyObject *)frame);
  if (!found) return -1;
  int is_users = found != Py_None;
  if (is_users && !PyArg_ParseTuple(found, "III", &where->file, &where->line, &where->function))
    is_users = -1;
  Py_DECREF(found);
  if (is_users >= 0)
    remember_place(self, code, is_users ? PyFrame_GetLasti(frame) : LIBRARY, is_users ? where : NULL);
  return is_users;
}

static int look_at(Core *self, PyFrameObject *frame, struct where *where) {
  PyCodeObject *code = PyFrame_GetCode(frame);
  int is_users = 0;
  if (!place_of(self, code, LIBRARY)->code) {
    struct place *known = place_of(self, code, PyFrame_GetLasti(frame));
    is_users = known->code ? 1 : ask_place(self, frame, code, where);
    if (known->code && is_users == 1) *where = known->where;
  }
  Py_DECREF(code);
  return is_users;
}

/* Make objects of the frames, and ask for what is not known. 1: Python may have run; -1: with an
 * exception. */
static SELDOM int walk(Core *self, PyThreadState *thread, struct where *where) {
  memset(where, 0, sizeof *where);
  PyFrameObject *frame = PyThreadState_GetFrame(thread);
  int is_users = 0;
  while (frame && !(is_users = look_at(self, frame, where))) {
    PyFrameObject *outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return is_users < 0 ? -1 : 1;
}

#ifdef HAS_BARE_FRAMES
#if PY_VERSION_HEX >= 0x030D0000
#define CURRENT(state) (state)->current_frame
#define CODE(frame) (PyCode_Check((frame)->f_executable) ? (PyCodeObject *)(frame)->f_executable : NULL)
#else
#define CURRENT(state) (state)->cframe->current_frame
#define CODE(frame) (frame)->f_code
#endif

/* What is internal may differ between two releases that load the same extensions. */
static int is_same_python(void) { return Py_Version >> 8 == PY_VERSION_HEX >> 8; }

static int lasti_of(_PyInterpreterFrame *frame) {
  return _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
}

/* Whether this thread is where it was the last time. */
static int is_same_way(Core *self, const struct way *way, _PyInterpreterFrame *frame) {
  if (!way->steps || way->age != self->age) return 0;
  for (int step = 0; step < way->steps; step++, frame = frame->previous)
    if (!frame || CODE(frame) != way->code[step] || lasti_of(frame) != way->lasti[step]) return 0;
  return 1;
}

/* Find the user's line where all code on the way to it is known. */
static int find_known(Core *self, _PyInterpreterFrame *frame, struct way *way) {
  way->steps = 0;
  int steps = 0;
  for (; frame; frame = frame->previous) {
    PyCodeObject *code = CODE(frame);
    if (!code) return 0;
    if (steps < STEPS) {
      way->code[steps] = code;
      way->lasti[steps] = lasti_of(frame);
    }
    steps++;
    if (_PyFrame_IsIncomplete(frame)) { /* is being entered, or no Python */
      steps = STEPS + 1;
      continue;
    }
    if (place_of(self, code, LIBRARY)->code) continue;
    struct place *known = place_of(self, code, lasti_of(frame));
    if (!known->code) return 0;
    way->where = known->where;
    way->steps = steps <= STEPS ? steps : 0;
    way->age = self->age;
    return 1;
  }
  return 0;
}
#endif

/* Find the innermost line of the user's; zeros if there is none. -1 with an exception. */
static int find_where(Core *self, PyThreadState *thread, struct way *way, struct where *where) {
#ifdef HAS_BARE_FRAMES
  if (is_same_python()) {
    _PyInterpreterFrame *bare = CURRENT(thread);
    if (is_same_way(self, way, bare) || find_known(self, bare, way)) {
      *where = way->where;
      return 0;
    }
  }
#else
  (void)way;
#endif
  return walk(self, thread, where);
}

/* What is sent: as Details.of. */

static SELDOM int ask_detail(Core *self, PyObject *sent, PyObject *prefix, uint32_t *number) {
  PyObject *arguments[] = {sent, prefix};
  PyObject *found = PyObject_Vectorcall(self->details, arguments, prefix ? 2 : 1, NULL);
  if (!found) return -1;
  *number = (uint32_t)PyLong_AsUnsignedLong(found);
  Py_DECREF(found);
  return PyErr_Occurred() ? -1 : 0;
}

/* Put the sizes of a tensor into a key; 0: they do not fit, or are no numbers. */
static int read_sizes(PyObject *shape, struct detail *key) {
  if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) > DIMENSIONS) return 0;
  key->dimensions = PyTuple_GET_SIZE(shape);
  for (Py_ssize_t each = 0; each < key->dimensions; each++) {
    PyObject *size = PyTuple_GET_ITEM(shape, each);
    if (!PyLong_CheckExact(size)) return 0;
    key->sizes[each] = PyLong_AsLongLong(size);
    if (key->sizes[each] == -1 && PyErr_Occurred()) return 0;
  }
  return 1;
}

static int is_same(const struct detail *one, const struct detail *other) {
  return one->dtype == other->dtype && one->code == other->code && one->prefix == other->prefix &&
         one->dimensions == other->dimensions && one->more == other->more &&
         !memcmp(one->sizes, other->sizes, (size_t)one->dimensions * sizeof *one->sizes);
}

static struct detail *detail_of(Core *self, const struct detail *key) {
  size_t hash = mix(address_hash(key->dtype) + key->code, address_hash(key->prefix));
  hash = mix(hash, (size_t)key->more);
  for (Py_ssize_t each = 0; each < key->dimensions; each++)
    hash = mix(hash, (size_t)key->sizes[each]);
  return &self->detail[(hash >> 20) % DETAILS];
}

/* Put dtype and sizes of a tensor into a key without making objects of them; 0: it is an odd one. */
static int read_tensor(Core *self, PyObject *tensor, struct detail *key) {
  struct tensor read;
  if (Py_TYPE(tensor) != self->tensor_type) return 0;
  if (self->read_tensor(tensor, &read)) { /* sparse, quantized, nested, of no device, ... */
    Py_CLEAR(self->tensor_type); /* its error takes a millisecond to make: there is to be no other */
    PyErr_Clear();
    return 0;
  }
  if (read.dimensions < 0 || read.dimensions > DIMENSIONS) return 0;
  key->code = (uint32_t)read.lanes << 16 | (uint32_t)read.bits << 8 | read.code;
  key->dimensions = read.dimensions;
  for (Py_ssize_t each = 0; each < key->dimensions; each++) key->sizes[each] = read.sizes[each];
  return key->code != 0;
}

/* The same of whatever has a dtype and a shape. -1 with an exception that is the test's. */
static SELDOM int ask_tensor(PyObject *tensor, struct detail *key) {
  key->code = 0;
  Py_INCREF(tensor); /* getting an attribute may run anything */
  key->dtype = PyObject_GetAttr(tensor, text_dtype);
  PyObject *shape = key->dtype ? PyObject_GetAttr(tensor, text_shape) : NULL;
  Py_DECREF(tensor);
  int fits = shape && read_sizes(shape, key);
  Py_XDECREF(shape);
  return recover() ? -1 : fits; /* 0: no tensor, or an odd one: Python knows */
}

/* Find it among all that are known, or ask. Returns as find_detail. */
static SELDOM int find_other_detail(Core *self, PyObject *sent, PyObject *first, struct detail *key,
                                    struct detail *last) {
  PyObject *prefix = key->prefix;
  Py_XINCREF(prefix); /* its entry may go while Python runs */
  int asked = key->code ? 0 : 1; /* getting an attribute runs Python, too */
  int fits = key->code ? 1 : ask_tensor(first, key);
  struct detail *known = fits > 0 ? detail_of(self, key) : NULL;
  if (fits < 0) {
    asked = -1;
  } else if (known && known->number && is_same(known, key)) {
    key->number = known->number;
    if (key->code) *last = *key; /* holds nothing but what its entry holds */
  } else {
    asked = ask_detail(self, sent, prefix, &key->number) ? -1 : 1;
    if (asked == 1 && known) {
      Py_XINCREF(key->dtype);
      Py_XINCREF(prefix);
      PyObject *dtype = known->dtype, *other = known->prefix;
      *known = *key; /* number 0: there was no room for it, and may never be */
      Py_XDECREF(dtype);
      Py_XDECREF(other);
    }
  }
  Py_XDECREF(key->dtype);
  Py_XDECREF(prefix);
  return asked;
}

/* Return the first tensor of a list, or of a list of lists; how many more the innermost list has. */
static PyObject *first_of(PyObject *sent, Py_ssize_t *more) {
  *more = 0;
  for (int depth = 0; depth < NESTED; depth++) { /* one that holds itself has no end */
    if (!PyList_CheckExact(sent) && !PyTuple_CheckExact(sent)) break;
    if (!PySequence_Fast_GET_SIZE(sent)) break;
    *more = PySequence_Fast_GET_SIZE(sent) - 1;
    sent = PySequence_Fast_GET_ITEM(sent, 0);
  }
  return sent;
}

/* Whether what is sent is read without running anything of the user's. */
static int is_plain(Core *self, PyObject *sent) {
  Py_ssize_t more;
  return Py_TYPE(first_of(sent, &more)) == self->tensor_type;
}

/* Find the number of the text for what is sent. 1: Python has run for it; -1: with an exception. */
static int find_detail(Core *self, PyObject *sent, PyObject *prefix, struct detail *last,
                       uint32_t *number) {
  struct detail key = {.prefix = prefix};
  PyObject *first = first_of(sent, &key.more);
  if (read_tensor(self, first, &key) && last->number && is_same(last, &key)) {
    *number = last->number;
    return 0;
  }
  int asked = find_other_detail(self, sent, first, &key, last);
  *number = key.number;
  return asked;
}

/* Prepared calls. */

struct entry {
  PyObject *pg;       /* torch's group: a weak reference; NULL: free */
  int goes_on;        /* whether a call returns at once: what is sent can be read while others work */
  long long one, two; /* root; or peer and tag */
  PyObject *group, *prefix;
  PyObject *sequence, *counts; /* of its like, or NULL; and the group's collectives */
  struct call call;
  long long count_at; /* in words of four bytes */
  unsigned long age;
  struct detail last; /* what was sent last, if anything */
  struct way way;     /* where it was called last */
};

static SELDOM void entry_clear(struct entry *self) {
  self->last.number = 0;
  self->way.steps = 0;
  Py_CLEAR(self->pg);
  Py_CLEAR(self->group);
  Py_CLEAR(self->sequence);
  Py_CLEAR(self->counts);
  Py_CLEAR(self->prefix);
}

static int entry_is_of(struct entry *self, PyObject *pg) {
  if (!self->pg) return 0;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *found = NULL;
  int is_alive = PyWeakref_GetRef(self->pg, &found);
  if (is_alive < 0) PyErr_Clear();
  Py_XDECREF(found);
  return is_alive == 1 && found == pg;
#else
  return PyWeakref_GET_OBJECT(self->pg) == pg;
#endif
}

/* Take what Python has prepared: (Group, Call, iterator of sequences or None, prefix or None, whether
 * a call returns at once). */
static SELDOM int entry_fill(struct entry *self, PyObject *prepared) {
  PyObject *group, *call, *sequence, *prefix;
  int goes_on;
  if (!PyArg_ParseTuple(prepared, "OOOOp", &group, &call, &sequence, &prefix, &goes_on)) return -1;
  PyObject *data = PyObject_GetAttr(call, text_data), *at = PyObject_GetAttr(call, text_count_at);
  entry_clear(self);
  int fits = data && at && PyBytes_Check(data) && PyBytes_GET_SIZE(data) == sizeof self->call;
  if (fits) {
    memcpy(&self->call, PyBytes_AS_STRING(data), sizeof self->call);
    self->count_at = PyLong_AsLongLong(at);
    self->counts = PyObject_GetAttr(call, text_sequence);
    Py_INCREF(group);
    self->group = group;
    if (sequence != Py_None) {
      Py_INCREF(sequence);
      self->sequence = sequence;
    }
    if (prefix != Py_None) {
      Py_INCREF(prefix);
      self->prefix = prefix;
    }
    self->goes_on = goes_on;
    self->pg = PyObject_GetAttr(group, text_pg);
  } else if (!PyErr_Occurred()) {
    PyErr_SetString(PyExc_TypeError, "this is no prepared call");
  }
  Py_XDECREF(data);
  Py_XDECREF(at);
  if (self->pg && !PyWeakref_Check(self->pg)) PyErr_SetString(PyExc_TypeError, "no weak reference");
  if (!PyErr_Occurred()) return 0;
  entry_clear(self);
  return -1;
}

/* Note a call: as SlotPage.begin. Whatever fails, it is noted nowhere. */
static long long core_note(Core *self, PyThreadState *thread, struct entry *entry,
                           const struct where *where, long long sequence, uint32_t detail) {
  const struct layout *is = &self->layout;
  long long at = is->no_place, number = -1;
  uint64_t began = now_ns();
  PyObject *numbers = core_map(self) ? slot(self->page, self->numbers_at) : NULL;
  if (!numbers || entry->age != self->age) goto done; /* another page: its texts are others */
  if (!sequence) {
    sequence = next_of(entry->counts);
    if (sequence < 0) goto done;
    if (entry->count_at >= 0 && entry->count_at / 2 < is->no_place + WORDS)
      __atomic_store_n((uint32_t *)self->view.buf + entry->count_at, (uint32_t)sequence,
                       __ATOMIC_RELEASE);
  }
  struct record *record = NULL;
  for (long long tries = 0; tries <= is->records && !record; tries++) {
    number = next_of(numbers);
    if (number < 0) goto done;
    struct record *next = record_at(self, is->first + number % is->records * WORDS);
    if (next->ended) record = next; /* else it is still open */
  }
  if (!record) goto done;
  put(&record->began, began);
  put(&record->ended, 0);
  record->waited = began;
  record->sequence = (uint32_t)sequence;
  record->detail = detail;
  record->thread = (uint32_t)thread->native_thread_id; /* right after a fork, too */
  record->where = *where;
  record->flags = 0;
  record->call = entry->call;
  put(&record->number, (uint64_t)number + 1);
  at = is->first + number % is->records * WORDS;
done:
  if (at == is->no_place) PyErr_Clear(); /* an error in recording is no error of the test */
  return at;
}

/* Say that this thread waits for what is noted at a place: as Recorder.wait. -1 with an exception
 * that is the test's. */
static int core_wait(Core *self, PyThreadState *thread, struct way *way, long long at) {
  struct where where;
  if (find_where(self, thread, way, &where) < 0) {
    return recover();
  } else if (core_map(self) && is_place(self, at)) {
    struct record *record = record_at(self, at);
    record->thread = (uint32_t)thread->native_thread_id;
    record->where = where;
    put(&record->waited, now_ns());
  }
  return 0;
}

/* Tell Python of the exception that is set, which stays set unless a graver one comes:
 * recorder.fail(at, error), or, of a work, works._fail_wait(work, (at,), error). */
static SELDOM void tell_error(Core *self, PyObject *work, long long at) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject *error = PyErr_GetRaisedException();
#else
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback && error) PyException_SetTraceback(error, traceback);
#endif
  PyObject *place = Py_BuildValue(work ? "(L)" : "L", at), *done = NULL;
  if (place && error)
    done = work ? PyObject_CallMethodObjArgs(self->works, text_fail_wait, work, place, error, NULL)
                : PyObject_CallMethodObjArgs(self->recorder, text_fail, place, error, NULL);
  Py_XDECREF(done);
  Py_XDECREF(place);
#if PY_VERSION_HEX >= 0x030C0000
  if (!recover()) PyErr_SetRaisedException(error);
  else Py_XDECREF(error);
#else
  if (!recover()) {
    PyErr_Restore(type, error, traceback);
  } else {
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
  }
#endif
}

/* Launched: what somebody may still wait for, until Python wants to know or it is gone. A dict of weak
 * references, as in torch_works.py, takes longer than all else that is done for an asynchronous call. */

struct launched {
  PyObject *work; /* borrowed, since its end is seen: see work_dealloc; NULL: free */
  Core *core;     /* borrowed: it takes its own out when it goes */
  PyObject *group;
  long long at;
  uint64_t launched_ns;
};
static struct launched all_launched[SETS * WAYS];
static PyTypeObject *work_type;
static destructor dealloc_of_torch;

static struct launched *launched_set(const void *work) {
  return &all_launched[(address_hash(work) >> 20) % SETS * WAYS];
}

static struct launched *launched_among(struct launched *set, const void *work) {
  for (int way = 0; way < WAYS; way++)
    if (set[way].work == work) return &set[way];
  return NULL;
}

static struct launched *launched_find(const void *work) {
  return launched_among(launched_set(work), work);
}

static void launched_forget(struct launched *self) {
  self->work = NULL;
  Py_CLEAR(self->group);
}

/* End what nobody can wait for any more: its work is gone. As Works._drop. */
static void work_dealloc(PyObject *work) {
  struct launched *found = launched_find(work);
  if (found) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    core_end(found->core, found->at);
    launched_forget(found);
    PyErr_Restore(type, error, traceback);
  }
  dealloc_of_torch(work);
}

/* See the end of each work from now on; there is one such type, and it is seen once. */
static int watch_works(PyTypeObject *type) {
  if (work_type && work_type != type) {
    PyErr_SetString(PyExc_TypeError, "there is another type of works");
    return -1;
  }
  if (!work_type) {
    Py_INCREF(type);
    work_type = type;
    dealloc_of_torch = type->tp_dealloc;
    type->tp_dealloc = work_dealloc;
  }
  return 0;
}

/* Give what is launched to Python: works.adopt(work, at, group, launched_ns). */
static SELDOM int hand_over(Core *self) {
  for (int each = 0; each < SETS * WAYS; each++) {
    struct launched *found = &all_launched[each];
    if (!found->work || found->core != self) continue;
    PyObject *work = found->work, *group = found->group;
    Py_INCREF(work);
    Py_INCREF(group);
    PyObject *done = PyObject_CallMethod(self->works, "adopt", "OLOK", work, found->at, group,
                                         (unsigned long long)found->launched_ns);
    if (done && found->work == work) launched_forget(found);
    Py_XDECREF(done);
    Py_DECREF(group);
    Py_DECREF(work);
    if (!done) return -1;
  }
  return 0;
}

static PyObject *core_hand_over(PyObject *self, PyObject *unused) {
  (void)unused;
  if (hand_over((Core *)self)) return NULL;
  Py_RETURN_NONE;
}

/* Keep in mind what is launched: as Works._hold. -1 with an exception. */
static int core_hold(Core *self, PyObject *work, long long at, PyObject *group) {
  uint64_t launched_ns = now_ns();
  struct launched *set = launched_set(work), *found = NULL;
  if (Py_TYPE(work) == work_type && !(found = launched_among(set, work)))
    found = launched_among(set, NULL);
  if (!found) {
    PyObject *done = hand_over(self) ? NULL
                                     : PyObject_CallMethod(self->works, "adopt", "OLOK", work, at,
                                                           group, (unsigned long long)launched_ns);
    Py_XDECREF(done);
    return done ? 0 : -1;
  }
  Py_INCREF(group);
  Py_XSETREF(found->group, group);
  found->work = work;
  found->core = self;
  found->at = at;
  found->launched_ns = launched_ns;
  return 0;
}

static int core_traverse(PyObject *object, visitproc visit, void *arg) {
  Core *self = (Core *)object;
  Py_VISIT(self->recorder);
  Py_VISIT(self->works);
  Py_VISIT(self->held);
  Py_VISIT(self->details);
  Py_VISIT(self->local);
  Py_VISIT(self->page_type);
  Py_VISIT(self->tensor_type);
  Py_VISIT(self->page);
  Py_VISIT(self->texts);
  Py_VISIT(self->words);
  return 0;
}

static int core_clear(PyObject *object) {
  Core *self = (Core *)object;
  for (int each = 0; each < SETS * WAYS; each++)
    if (all_launched[each].core == self) launched_forget(&all_launched[each]);
  core_forget(self);
  core_unmap(self);
  Py_CLEAR(self->recorder);
  Py_CLEAR(self->works);
  Py_CLEAR(self->held);
  Py_CLEAR(self->details);
  Py_CLEAR(self->local);
  Py_CLEAR(self->page_type);
  Py_CLEAR(self->tensor_type);
  return 0;
}

static void core_dealloc(PyObject *object) {
  PyObject_GC_UnTrack(object);
  core_clear(object);
  Py_TYPE(object)->tp_free(object);
}

static int core_is_sound(Core *self, const char *format) {
  struct layout *is = &self->layout;
  self->page_at = slot_offset(Py_TYPE(self->recorder), "page");
  self->on_begin_at = slot_offset(Py_TYPE(self->recorder), "on_begin");
  self->words_at = slot_offset(self->page_type, "_words");
  self->numbers_at = slot_offset(self->page_type, "_numbers");
  self->texts_at = slot_offset(self->page_type, "_texts");
  if (PyErr_Occurred()) return 0;
  is->first = is->no_place - is->records * WORDS; /* the records lie right before that one */
  int fits = !strcmp(format, RECORD_FORMAT) && is->records > 0 && is->first > 0;
  if (!fits) PyErr_SetString(PyExc_ValueError, "the slot page has another layout");
  return fits;
}

/* Take torch.Tensor's table of functions, if this version of torch has one that is known here. */
static void core_know_tensors(Core *self, PyObject *type) {
  PyObject *offered = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  struct tensor_functions *functions =
      offered ? PyCapsule_GetPointer(offered, "dlpack_exchange_api") : NULL;
  if (functions && functions->major == 1 && functions->read_tensor && PyType_Check(type)) {
    self->read_tensor = functions->read_tensor;
    Py_INCREF(type);
    self->tensor_type = (PyTypeObject *)type;
  }
  Py_XDECREF(offered); /* the type has it */
  PyErr_Clear();
}

static PyObject *core_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"recorder", "works", "held",    "details",  "local",  "page",
                          "format",   "records", "no_place", "tensor", "work", NULL};
  PyObject *recorder, *works, *held, *details, *local, *page, *tensor, *work;
  const char *format;
  struct layout is = {0};
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$OOO!OO!O!sLLOO!", names, &recorder, &works,
                                   &PyDict_Type, &held, &details, &Local_Type, &local, &PyType_Type,
                                   &page, &format, &is.records, &is.no_place, &tensor, &PyType_Type,
                                   &work))
    return NULL;
  Core *self = (Core *)type->tp_alloc(type, 0); /* all zeros */
  if (!self) return NULL;
  PyObject *kept[] = {recorder, works, held, details, local, page};
  for (size_t each = 0; each < sizeof kept / sizeof *kept; each++) Py_INCREF(kept[each]);
  self->recorder = recorder;
  self->works = works;
  self->held = held;
  self->details = details;
  self->local = (Local *)local;
  self->page_type = (PyTypeObject *)page;
  self->layout = is;
  core_know_tensors(self, tensor);
  if (core_is_sound(self, format) && !watch_works((PyTypeObject *)work)) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static PyMethodDef core_methods[] = {
    {"hand_over", core_hand_over, METH_NOARGS, "Give what is launched to Works.adopt."},
    {0},
};

static PyTypeObject Core_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "pytest_multihost._fast.Core",
    .tp_doc = "What the wrappers of one recorder share.",
    .tp_basicsize = sizeof(Core),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = core_new,
    .tp_methods = core_methods,
    .tp_traverse = core_traverse,
    .tp_clear = core_clear,
    .tp_dealloc = core_dealloc,
};

/* Wrapper: stands for a method of a bound class. Method for ProcessGroup's, Wait for Work's. */

enum kind { PLAIN, ROOTED, TRANSFER, ANYSOURCE }; /* what tells one call from another: nothing; its
                                                     root; a peer and a tag; a tag */
typedef struct {
  PyObject_VAR_HEAD vectorcallfunc vectorcall;
  PyObject *dict, *original, *slow;
  PyTypeObject *bound;
  Core *core;
  /* Method's alone. */
  PyObject *prepare;
  int kind;
  Py_ssize_t sent;
  /* Wait's alone. */
  struct way way;
  struct entry entries[];
} Wrapper;

/* Whether nothing is uncommon about a call; the state of its thread if so. */
static LocalState *is_common(Wrapper *self, PyThreadState *thread, PyObject *const *args,
                             Py_ssize_t count) {
  Core *core = self->core;
  if (count < 1 || Py_TYPE(args[0]) != self->bound || !core_map(core)) return NULL;
  PyObject *listeners = slot(core->recorder, core->on_begin_at);
  if (!listeners || !PyList_CheckExact(listeners) || PyList_GET_SIZE(listeners)) return NULL;
  LocalState *local = local_at(core->local, thread);
  if (!local) PyErr_Clear();
  return local && !local->coalesced ? local : NULL;
}

/* Return what is passed by a name, which Python's compiler has interned. */
static PyObject *argument(PyObject *const *args, Py_ssize_t count, PyObject *kwnames,
                          PyObject *name) {
  Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t each = 0; each < named; each++) {
    PyObject *is = PyTuple_GET_ITEM(kwnames, each);
    if (is == name || PyUnicode_Compare(is, name) == 0) return args[count + each];
  }
  return NULL;
}

/* Find what tells one call of a method from another; 0: Python must. */
static int tell_apart(Wrapper *self, PyObject *const *args, Py_ssize_t count, PyObject *kwnames,
                      PyObject *opts, long long *one, long long *two) {
  *one = -1;
  *two = 0;
  if (self->kind == PLAIN) return 1;
  if (self->kind == ROOTED) {
    PyObject *root = opts ? PyObject_GetAttr(opts, text_rootrank) : NULL;
    int is_found = whole_number(root, one);
    Py_XDECREF(root);
    return is_found;
  }
  if (kwnames && PyTuple_GET_SIZE(kwnames)) return 0;
  if (self->kind == ANYSOURCE) return count == 3 && whole_number(args[2], two);
  return count == 4 && whole_number(args[2], one) && whole_number(args[3], two);
}

/* Ask Python for an entry. NULL, maybe with an exception: there is none. */
static SELDOM struct entry *prepare(Wrapper *self, struct entry *entry, PyObject *pg, long long one,
                                    long long two) {
  PyObject *prepared = PyObject_CallFunction(self->prepare, "OLL", pg, one, two);
  int failed = !prepared || entry_fill(entry, prepared);
  Py_XDECREF(prepared);
  if (failed) return NULL;
  entry->one = one;
  entry->two = two;
  entry->age = self->core->age;
  return entry;
}

static struct entry *entry_of(Wrapper *self, PyObject *pg, long long one, long long two) {
  size_t hash = mix(address_hash(pg) + (size_t)one, (size_t)two);
  struct entry *entry = &self->entries[(hash >> 20) % ENTRIES];
  if (entry->one == one && entry->two == two && entry->age == self->core->age &&
      entry_is_of(entry, pg))
    return entry;
  return prepare(self, entry, pg, one, two);
}

/* Whether the caller does not wait at once: as in Works.hold. -1 with an exception. */
static int is_async(LocalState *local, PyObject *opts) {
  if (!opts || opts == Py_None || PyList_CheckExact(opts)) return 1;
  if (local && local->options == opts) return local->is_async;
  PyObject *value = PyObject_GetAttr(opts, text_asyncop);
  if (!value) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 1;
  }
  int is_true = PyObject_IsTrue(value);
  Py_DECREF(value);
  return is_true;
}

/* Note that a call has returned: as Works.hold, without a batch. -1 with an exception that is the
 * test's. */
static int launched(Wrapper *self, PyObject *pg, long long one, long long two, PyObject *work,
                     long long at, PyObject *opts) {
  Core *core = self->core;
  if (work == Py_None) {
    core_end(core, at);
    return 0;
  }
  LocalState *local = local_now(core->local);
  int does_not_wait = is_async(local, opts);
  if (does_not_wait == 1) {
    if (local && local->work == (uintptr_t)work) { /* one that is gone without having been waited for */
      local->work = 0;
      core_end(core, local->at);
    }
    core_leave(core, at);
    struct entry *entry = entry_of(self, pg, one, two);
    if (entry) core_hold(core, work, at, entry->group);
  } else if (does_not_wait == 0 && local) {
    if (local->work) core_end(core, local->at);
    local->work = (uintptr_t)work;
    local->at = at;
  }
  if (local) Py_CLEAR(local->options);
  return recover();
}

/* Note what has been sent, while those work who were told to. -1: the exception that is set is not the
 * one that was, but the test's. */
static int note_detail(Wrapper *self, PyObject *const *args, long long one, long long two,
                       long long at) {
  Core *core = self->core;
  uint32_t detail = 0;
  PyObject *type = NULL, *error = NULL, *traceback = NULL;
  if (PyErr_Occurred()) PyErr_Fetch(&type, &error, &traceback);
  struct entry *entry = entry_of(self, args[0], one, two);
  if (entry && find_detail(core, args[1 + self->sent], entry->prefix, &entry->last, &detail) >= 0 &&
      core_map(core) && is_place(core, at))
    record_at(core, at)->detail = detail;
  int is_graver = recover();
  if (type && !is_graver) {
    PyErr_Restore(type, error, traceback);
  } else {
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
  }
  return is_graver;
}

static PyObject *method_call(PyObject *object, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames) {
  Wrapper *self = (Wrapper *)object;
  Core *core = self->core;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  long long one, two;
  uint32_t detail = 0;
  struct entry *entry;
  PyThreadState *thread = PyThreadState_Get();
  if (!is_common(self, thread, args, count)) goto slowly;
  PyObject *opts = NULL;
  if (self->kind == PLAIN || self->kind == ROOTED)
    opts = count > 1 ? args[count - 1] : argument(args, count, kwnames, text_opts);
  if (self->kind == ROOTED && kwnames && count > 1) goto slowly; /* opts may stand in either */
  if (!tell_apart(self, args, count, kwnames, opts, &one, &two)) goto slowly;
  entry = entry_of(self, args[0], one, two);
  if (!entry) goto slowly;
  PyObject *sent = count - 1 > self->sent ? args[1 + self->sent] : NULL;
  int is_later = sent && entry->goes_on && is_plain(core, sent);
  if (sent && !is_later) {
    int asked = find_detail(core, sent, entry->prefix, &entry->last, &detail);
    entry = asked > 0 ? entry_of(self, args[0], one, two) : entry; /* Python may have dropped it */
    if (asked < 0 || !entry) goto slowly;
  }
  struct where where;
  long long at = core->layout.no_place, sequence = entry->sequence ? next_of(entry->sequence) : 0;
  int walked = sequence < 0 ? -1 : find_where(core, thread, &entry->way, &where);
  if (walked > 0) entry = core_map(core) ? entry_of(self, args[0], one, two) : NULL; /* as above */
  if (walked >= 0 && entry)
    at = core_note(core, thread, entry, &where, sequence, detail);
  else if (recover())
    return NULL;
  PyObject *work = PyObject_Vectorcall(self->original, args, (size_t)count, kwnames);
  if (is_later && note_detail(self, args, one, two, at)) Py_CLEAR(work);
  if (!work)
    tell_error(core, NULL, at);
  else if (launched(self, args[0], one, two, work, at, opts))
    Py_CLEAR(work);
  return work;
slowly:
  if (recover()) return NULL;
  return PyObject_Vectorcall(self->slow, args, (size_t)count, kwnames);
}

/* Take a work that has been waited for out of what is held, here or in Python. */
static void let_go(Core *self, PyObject *work, long long at) {
  struct launched *found = launched_find(work);
  if (found && found->at == at) {
    launched_forget(found);
  } else if (!found && PyDict_GET_SIZE(self->held)) { /* Python has wanted to know meanwhile */
    PyObject *address = PyLong_FromVoidPtr(work);
    if (!address || PyDict_DelItem(self->held, address)) PyErr_Clear();
    Py_XDECREF(address);
  }
}

static PyObject *wait_call(PyObject *object, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames) {
  Wrapper *self = (Wrapper *)object;
  Core *core = self->core;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count < 1 || Py_TYPE(args[0]) != self->bound || !core_map(core)) goto slowly;
  PyThreadState *thread = PyThreadState_Get();
  LocalState *local = local_at(core->local, thread);
  if (!local) {
    PyErr_Clear();
    goto slowly;
  }
  PyObject *work = args[0];
  int is_held = local->work != (uintptr_t)work;
  long long at;
  if (is_held) {
    struct launched *found = launched_find(work);
    if (!found && !PyDict_GET_SIZE(core->held))
      return PyObject_Vectorcall(self->original, args, (size_t)count, kwnames);
    if (!found || found->core != core) goto slowly; /* Python knows */
    at = found->at;
    if (core_wait(core, thread, &self->way, at)) return NULL;
  } else {
    local->work = 0;
    at = local->at;
  }
  PyObject *result = PyObject_Vectorcall(self->original, args, (size_t)count, kwnames);
  if (!result) {
    struct launched *found = is_held ? launched_find(work) : NULL;
    if (found && found->at == at) launched_forget(found);
    tell_error(core, work, at);
  } else {
    if (is_held) let_go(core, work, at);
    core_end(core, at);
  }
  return result;
slowly:
  if (count > 0 && launched_find(args[0]) && hand_over(core) && recover()) return NULL;
  return PyObject_Vectorcall(self->slow, args, (size_t)count, kwnames);
}

static PyObject *wrapper_get(PyObject *self, PyObject *instance, PyObject *owner) {
  (void)owner;
  if (instance && instance != Py_None) return PyMethod_New(self, instance);
  Py_INCREF(self);
  return self;
}

static int wrapper_traverse(PyObject *object, visitproc visit, void *arg) {
  Wrapper *self = (Wrapper *)object;
  Py_VISIT(self->dict);
  Py_VISIT(self->original);
  Py_VISIT(self->slow);
  Py_VISIT(self->bound);
  Py_VISIT(self->core);
  Py_VISIT(self->prepare);
  for (Py_ssize_t each = 0; each < Py_SIZE(self); each++) {
    Py_VISIT(self->entries[each].pg);
    Py_VISIT(self->entries[each].group);
    Py_VISIT(self->entries[each].sequence);
    Py_VISIT(self->entries[each].counts);
    Py_VISIT(self->entries[each].prefix);
  }
  return 0;
}

static int wrapper_clear(PyObject *object) {
  Wrapper *self = (Wrapper *)object;
  for (Py_ssize_t each = 0; each < Py_SIZE(self); each++) entry_clear(&self->entries[each]);
  Py_CLEAR(self->dict);
  return 0; /* the rest is needed to be called, and its cycles go through __dict__ or the class */
}

static void wrapper_dealloc(PyObject *object) {
  Wrapper *self = (Wrapper *)object;
  PyObject_GC_UnTrack(object);
  wrapper_clear(object);
  Py_CLEAR(self->original);
  Py_CLEAR(self->slow);
  Py_CLEAR(self->bound);
  Py_CLEAR(self->core);
  Py_CLEAR(self->prepare);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *wrapper_make(PyTypeObject *type, Py_ssize_t entries, PyObject *core,
                              PyObject *original, PyObject *slow, PyObject *bound) {
  Wrapper *self = (Wrapper *)type->tp_alloc(type, entries);
  if (!self) return NULL;
  if (PyInstanceMethod_Check(original)) original = PyInstanceMethod_GET_FUNCTION(original);
  PyObject *kept[] = {core, original, slow, bound};
  for (size_t each = 0; each < sizeof kept / sizeof *kept; each++) Py_INCREF(kept[each]);
  self->core = (Core *)core;
  self->original = original;
  self->slow = slow;
  self->bound = (PyTypeObject *)bound;
  return (PyObject *)self;
}

static PyObject *method_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"core", "original", "slow", "bound", "prepare", "kind", "sent", NULL};
  PyObject *core, *original, *slow, *bound, *prepare;
  int kind;
  Py_ssize_t sent;
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$O!OOO!Oin", names, &Core_Type, &core,
                                   &original, &slow, &PyType_Type, &bound, &prepare, &kind, &sent))
    return NULL;
  Wrapper *self = (Wrapper *)wrapper_make(type, ENTRIES, core, original, slow, bound);
  if (!self) return NULL;
  Py_INCREF(prepare);
  self->prepare = prepare;
  self->kind = kind;
  self->sent = sent;
  self->vectorcall = method_call;
  return (PyObject *)self;
}

static PyObject *wait_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  static char *names[] = {"core", "original", "slow", "bound", NULL};
  PyObject *core, *original, *slow, *bound;
  if (!PyArg_ParseTupleAndKeywords(arguments, named, "$O!OOO!", names, &Core_Type, &core, &original,
                                   &slow, &PyType_Type, &bound))
    return NULL;
  Wrapper *self = (Wrapper *)wrapper_make(type, 0, core, original, slow, bound);
  if (self) self->vectorcall = wait_call;
  return (PyObject *)self;
}

/* As functions are copied: as themselves. */
static PyObject *wrapper_copy(PyObject *self, PyObject *memo) {
  (void)memo;
  Py_INCREF(self);
  return self;
}

static PyMethodDef wrapper_methods[] = {
    {"__copy__", wrapper_copy, METH_NOARGS, NULL},
    {"__deepcopy__", wrapper_copy, METH_O, NULL},
    {0},
};

static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

#define WRAPPER(name, of, make)                                                                  \
  {                                                                                              \
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = name, .tp_doc = of,                                 \
    .tp_basicsize = sizeof(Wrapper), .tp_itemsize = sizeof(struct entry),                        \
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |           \
                Py_TPFLAGS_METHOD_DESCRIPTOR,                                                    \
    .tp_new = make, .tp_traverse = wrapper_traverse, .tp_clear = wrapper_clear,                  \
    .tp_dealloc = wrapper_dealloc, .tp_descr_get = wrapper_get, .tp_call = PyVectorcall_Call,    \
    .tp_vectorcall_offset = offsetof(Wrapper, vectorcall),                                       \
    .tp_dictoffset = offsetof(Wrapper, dict), .tp_getset = wrapper_getset,                       \
    .tp_methods = wrapper_methods,                                                               \
  }

static PyTypeObject Method_Type =
    WRAPPER("pytest_multihost._fast.Method", "Stands for a method of ProcessGroup.", method_new);
static PyTypeObject Wait_Type =
    WRAPPER("pytest_multihost._fast.Wait", "Stands for a method of Work.", wait_new);

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_fast",
    .m_doc = "The hot path of the recorder for torch.",
    .m_size = -1,
};

static int make_texts(void) {
  struct {
    PyObject **text;
    const char *is;
  } all[] = {
      {&text_counting, "counting"}, {&text_numbers, "_numbers"}, {&text_asyncop, "asyncOp"},
      {&text_rootrank, "rootRank"}, {&text_dtype, "dtype"},
      {&text_shape, "shape"},     {&text_find, "_find"},        {&text_fail, "fail"},
      {&text_data, "data"},       {&text_sequence, "sequence"}, {&text_count_at, "count_at"},
      {&text_pg, "pg"},           {&text_opts, "opts"},           {&text_fail_wait, "_fail_wait"},
  };
  for (size_t each = 0; each < sizeof all / sizeof *all; each++)
    if (!(*all[each].text = PyUnicode_InternFromString(all[each].is))) return -1;
  return 0;
}

PyMODINIT_FUNC PyInit__fast(void) {
  PyTypeObject *types[] = {&LocalState_Type, &Counter_Type, &Local_Type, &Field_Type,
                           &Core_Type,       &Method_Type,  &Wait_Type};
  Field_Type.tp_base = &PyProperty_Type;
  Field_Type.tp_basicsize = PyProperty_Type.tp_basicsize + (Py_ssize_t)sizeof(Field);
  if (make_texts()) return NULL;
  for (size_t each = 0; each < sizeof types / sizeof *types; each++)
    if (PyType_Ready(types[each])) return NULL;
  PyObject *made = PyModule_Create(&module);
  if (!made) return NULL;
  for (size_t each = 1; each < sizeof types / sizeof *types; each++) {
    if (PyModule_AddType(made, types[each])) {
      Py_DECREF(made);
      return NULL;
    }
  }
  return made;
}
