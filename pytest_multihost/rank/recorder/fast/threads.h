#pragma once
#include "common.h"

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
