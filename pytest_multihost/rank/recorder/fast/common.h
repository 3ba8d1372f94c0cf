/* What all of it needs: the record as it lies in memory, time, numbers, errors. */
#pragma once
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
